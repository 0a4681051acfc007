"""Experiments on the real server: what costs a cache is done on purpose, and what loopkit makes of it is counted."""

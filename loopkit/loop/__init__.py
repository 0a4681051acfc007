"""Turns: ask, stream, check the contract, log, and say what the cache did."""

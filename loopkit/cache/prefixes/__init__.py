"""Prefixes of requests: what they share, where they diverge, and what kind of change that is."""

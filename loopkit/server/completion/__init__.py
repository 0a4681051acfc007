"""Completions: messages and usage, assembled from streams, fragments and tool calls."""

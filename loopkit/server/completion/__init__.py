"""Completions: the message, tool calls and usage of a response, assembled from a stream or a body."""

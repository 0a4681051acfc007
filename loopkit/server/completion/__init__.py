"""Completions: streams, fragments and tool calls into one message, and its usage."""

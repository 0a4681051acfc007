"""Logs of other tools: formats, entries, conversations and parts of frames."""

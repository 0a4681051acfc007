"""Servers: an embedded one, or any other that speaks OpenAI chat completions."""

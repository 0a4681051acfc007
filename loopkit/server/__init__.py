"""Servers: embedded, or any other that speaks OpenAI chat completions."""

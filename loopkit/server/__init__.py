"""Servers: an embedded llama.cpp, or any other server that implements OpenAI chat completions."""

"""The embedded server: llama.cpp in a child process, with its models, slots and templates."""

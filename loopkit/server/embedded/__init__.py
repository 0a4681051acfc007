"""The embedded server: llama.cpp in a child process, its models, slots and templates."""

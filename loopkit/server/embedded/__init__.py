"""llama.cpp's own server in a child process: models, slots, templates."""

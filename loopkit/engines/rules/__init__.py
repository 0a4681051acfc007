"""Rules that several engines share: hosted providers, servers that one runs oneself, and llama.cpp's slots."""

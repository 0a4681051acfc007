"""Prompts as a server renders and tokenises them, and its control tags."""

"""Prompts as a server renders and tokenises them, and the control tags that a server recognises."""

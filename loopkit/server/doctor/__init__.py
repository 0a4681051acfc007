"""Checks of what a server offers for a warm cache."""

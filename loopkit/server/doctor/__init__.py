"""Checks of a server's properties and settings that help or harm prompt caching."""

"""Logs into dataframes: one row means one thing, in every frame; keys join them."""

"""Dataframes: schema, columns, and how they are built and stored."""

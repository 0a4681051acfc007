"""Sessions on disk: an append-only log and a fixed baseline for each epoch. ``FORMAT.md`` describes the files."""

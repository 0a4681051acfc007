"""Other tools' logs: lines, entries, conversations, and the formats."""

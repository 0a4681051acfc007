"""Cache losses: what was expected, what was observed, and the cause of each loss."""

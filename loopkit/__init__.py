"""loopkit."""

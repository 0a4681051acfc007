"""loopkit's own log format, read fast."""

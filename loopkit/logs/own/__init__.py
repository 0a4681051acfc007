"""Fast reading of loopkit's own log format."""

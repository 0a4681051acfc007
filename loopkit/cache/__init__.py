"""What prompt caches do and why: pure functions over usage, bodies and tokens; no disk, no network."""

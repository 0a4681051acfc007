"""What is sent and logged, byte for byte: messages, records, baselines, requests, control tags. No disk, no network."""

"""What is sent and logged, byte for byte: messages, records, baselines, requests and control tags, without disk or network."""

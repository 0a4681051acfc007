"""Speed as ratios in one run, against what a person would use instead; `python -m tests.benchmarks [ROW …] [--size small]`."""

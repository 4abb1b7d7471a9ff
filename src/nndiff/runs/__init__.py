"""Training runs: recorded, read, compared over their steps."""

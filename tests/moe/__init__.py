"""Real ranks that serve many examples, and one process that computes the same without any."""

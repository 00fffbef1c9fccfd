"""The words of verdicts: every sentence that a user reads, made of codes and values."""

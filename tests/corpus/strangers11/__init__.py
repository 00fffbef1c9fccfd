"""Forty programs whose truth was written by two people who do not know the verdicts."""

"""A ninth set of programs whose truth was written by somebody who does not know the verdicts."""

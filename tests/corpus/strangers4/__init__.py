"""More programs whose truth was written by somebody who does not know how verdicts come about."""

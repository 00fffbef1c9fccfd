"""Cases whose truth is known: ordinary programs with a mistake, and labelled records."""

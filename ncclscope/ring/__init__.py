"""The crash-safe file that one process records its calls in."""

"""Records the calls of this process: who it is, what it posts, from where."""

"""A rank that is always the last to arrive: who it is, and how to make one."""

"""Record this process: its identity, its calls, and their call sites."""

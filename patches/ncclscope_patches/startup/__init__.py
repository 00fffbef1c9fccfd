"""Notes on what a process does before its first call: it meets its peers, compiles, loads."""

"""Programs whose hang is a chain of waits of different kinds."""

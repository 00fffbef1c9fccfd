"""Living processes, looked at from outside: nothing here writes to them or runs in them."""

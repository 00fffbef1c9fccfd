"""Read live processes from outside: nothing here writes to them or runs code in them."""

"""Start functions and programs as ranks: for pytest, the demonstration, and tests."""

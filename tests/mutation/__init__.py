"""Changes one line of the program at a time, and runs the tests to see whether one fails."""

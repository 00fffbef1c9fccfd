"""Compares the ranks of a run and says who left the common sequence."""

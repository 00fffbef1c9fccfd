"""Compares the calls of ranks: what was inserted, deleted, or swapped."""

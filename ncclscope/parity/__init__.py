"""Comparison of call sequences: between ranks, between runs, and with a stored baseline."""

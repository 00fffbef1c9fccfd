"""Proofs of verdicts, verified without the code that makes them."""

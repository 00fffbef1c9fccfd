"""Sweeps of damage over the rings of ten jobs: no damage may move a verdict but downwards."""

"""What engines, workers and schedulers of a service do outside of collectives."""

KINDS = ("not_scheduled", "rpc_stalled")
"""Kinds of findings on what engines wait for."""

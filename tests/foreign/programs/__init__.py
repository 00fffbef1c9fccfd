"""Healthy programs whose ranks are seldom in step, started by torchrun on four ranks."""

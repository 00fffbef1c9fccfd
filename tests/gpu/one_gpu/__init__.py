"""Ordinary programs whose faulty rank is chosen: four NCCL ranks on one GPU."""

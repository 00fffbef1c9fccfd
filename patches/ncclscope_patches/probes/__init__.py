"""Probes: what a program posts through torch.distributed, PyNccl and CUDA graphs."""

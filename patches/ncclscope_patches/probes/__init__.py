"""Probes of torch.distributed, PyNccl and CUDA graphs."""

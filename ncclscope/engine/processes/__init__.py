"""What process snapshots say: stacks, GPUs, and NCCL RAS."""

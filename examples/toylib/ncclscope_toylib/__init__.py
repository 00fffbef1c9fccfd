"""What ncclscope needs to know of toylib."""

"""The live view of ``ncclscope watch``: what stands on the screen, and how it gets there."""

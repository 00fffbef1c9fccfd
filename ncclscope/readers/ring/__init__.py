"""Read rings into ranks, decoding calls only on demand."""

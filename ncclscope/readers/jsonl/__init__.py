"""Read and write trace JSONL, version 1."""

from ncclscope.readers.jsonl.trace import is_trace, read_trace, write_trace

__all__ = ["is_trace", "read_trace", "write_trace"]

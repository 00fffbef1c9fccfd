"""The former name of :mod:`ncclscope.readers.jsonl`, which programs of others may import."""

from ncclscope.readers.jsonl import read_trace, write_trace

__all__ = ["read_trace", "write_trace"]

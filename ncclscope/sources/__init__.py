"""The former name of :mod:`ncclscope.readers`, which programs of others may import."""

from ncclscope.readers import open_run

__all__ = ["open_run"]

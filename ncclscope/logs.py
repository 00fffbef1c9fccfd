"""The former name of :mod:`ncclscope.model.log`, which programs of others may import."""

from ncclscope.model.log import CallLog, Trail

__all__ = ["CallLog", "Trail"]

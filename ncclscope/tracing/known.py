"""Check the names of operations and element types that a program records by itself."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ncclscope.model.signature import KNOWN_OPS, canonical_dtype, canonical_op
from ncclscope.tracing.warning import warn_once

_DTYPES = ("bfloat16", "bool", "float16", "float32", "float64", "int8", "int32", "int64", "uint8")
"""Names to suggest."""
_DTYPE = re.compile(
    r"b?float(?:\d+(?:_\w+)?)?|q?u?int\d*(?:x\d)?|complex\d+|bool|half|double|long|short|char|byte|"
    r"bits\d\w*"
)


def warn_of_unknown(op: str, dtype: str | None) -> None:
    """Warn once of each name that ncclscope does not know; the call is recorded as it is.

    Args:
        op: Operation, in any spelling.
        dtype: Element type; None for none.
    """
    name = canonical_op(op)
    if name not in KNOWN_OPS:
        _warn("operation", op, name, KNOWN_OPS)
    if dtype is not None and name != "new_group":
        element = canonical_dtype(dtype)
        if not _DTYPE.fullmatch(element):
            _warn("element type", dtype, element, _DTYPES)


def _warn(what: str, given: str, name: str, known: Iterable[str]) -> None:
    import difflib

    close = difflib.get_close_matches(name, sorted(known), 1)
    guess = f"; did you mean {close[0]}?" if close else ""
    warn_once(f"{what} {name}", f"{given!r} is no {what} of NCCL or torch{guess}")

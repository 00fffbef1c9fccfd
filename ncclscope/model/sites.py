"""Places in a program, as ``/full/path/file.py:120 function``, and whose they are.

A call has two: its site, the first frame above the plumbing between a program and its
collectives, and, where that lies in an installed package, the first frame of the user's own
program. Sites are compared and shown by their short spelling, ``file.py:120 function``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

__all__ = [
    "INSTALLED",
    "OWN",
    "PLUMBING",
    "Sites",
    "frame_of",
    "join",
    "library_role",
    "read",
    "role",
    "short",
    "spell",
]

OWN, PLUMBING, INSTALLED = 0, 1, 2
"""Roles of a source file: of the user's own program; between it and its collectives; other."""

LONGEST_PATH = 160
_SITE = re.compile(r"(.*):(\d+)(?: (.*))?", re.DOTALL)
_KNOWN = 1 << 14

_TORCH = (
    # Of an unknown root only what nobody else calls so: a user may have a folder "torch".
    r"(?:^(?:\./)?|(?:site|dist)-packages/)torch/(?!testing/)|"
    r"(?:^|/)torch/(?:distributed|autograd|fx|cuda|optim|_\w+|nn/(?:modules|parallel)|"
    r"utils/(?:checkpoint|_\w+))(?:/|\.py$)"
)
_GENERATED = r"/[a-z2-7]{2}/c[a-z2-7]{40,}\.py$|^<eval_with_key>"
"""What Inductor and fx have written."""
_PLUMBING = re.compile(
    rf"{_TORCH}|{_GENERATED}|(?:^|/)vllm/(?:distributed|compilation)/|"
    r"(?:^|/)(?:contextlib|functools|typing_extensions|warnings)\.py$"
)
_OURS = re.compile(r"(?:^|/)(?:ncclscope/(?:tracing|guard|ring)|ncclscope_patches)/")
_INSTALLED = re.compile(
    r"/(?:site|dist)-packages/|(?:^|/)lib(?:64)?/python3\.\d+t?/|^<(?:string|frozen)\b"
)


class Sites(NamedTuple):
    """The places of one call.

    Attributes:
        site: Short.
        full: The same with its path, as far as that is known.
        user: The user's own, with its path; None where ``site`` is that, or none is known.
    """

    site: str | None = None
    full: str | None = None
    user: str | None = None


@lru_cache(_KNOWN)
def role(path: str) -> int:
    """Return the role of a source file that is known by its name only."""
    return PLUMBING if _OURS.search(path) else library_role(path)


def library_role(path: str) -> int:
    """Return the role of a source file that is not ours."""
    if _PLUMBING.search(path):
        return PLUMBING
    return INSTALLED if _INSTALLED.search(path) else OWN


def spell(path: str, line: int, function: str) -> str:
    """Return the text of a place, with no more of a long path than its end."""
    if len(path) > LONGEST_PATH:
        path = f"...{path[3 - LONGEST_PATH :]}"
    return f"{path}:{line} {function}"


def short(text: str) -> str:
    """Return a place with the base name of its file."""
    found = _SITE.fullmatch(text)
    if found is None:
        return text
    return f"{found[1].rpartition('/')[2]}{text[found.end(1) :]}"


def frame_of(text: str | None) -> dict[str, Any] | None:
    """Return a place in parts, as JSON has it; None where there is none."""
    found = _SITE.fullmatch(text or "")
    if found is None:
        return None
    return {"file": found[1], "line": int(found[2][:18]), "function": found[3]}


def join(site: str, user: str | None) -> str:
    """Return the two places of a call as one text, for a ring."""
    return f"{site}\n{user}" if user else site


@lru_cache(_KNOWN)
def read(text: str | None, user: str | None = None) -> Sites:
    """Return the places of a text that :func:`join` made, or of one in either spelling."""
    full, _, joined = (text or "").strip().partition("\n")
    if not full:
        return Sites()
    return Sites(short(full), full, (user or joined).strip() or None)

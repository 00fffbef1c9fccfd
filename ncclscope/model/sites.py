"""Call sites, as ``/full/path/file.py:120 function``, and the roles of their source files.

A call has two: its site is the first frame above the plumbing between a program and its
collectives. If that is in an installed package, the call also has the first frame of the user's
own program. Sites are compared and shown by their short spelling, ``file.py:120 function``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from ncclscope.untrusted import printable

OWN, PLUMBING, INSTALLED = 0, 1, 2
"""Roles of a source file: user's program, plumbing between it and its collectives, or other."""

LONGEST_PATH = 160
_SITE = re.compile(r"(.*):(\d+)(?: (.*))?", re.DOTALL)
_KNOWN = 1 << 14

_TORCH = (
    # With an unknown root, match only torch's own folders: a user may have a folder "torch".
    r"(?:^(?:\./)?|(?:site|dist)-packages/)torch/(?!testing/)|"
    r"(?:^|/)torch/(?:distributed|autograd|fx|cuda|optim|_\w+|nn/(?:modules|parallel)|"
    r"utils/(?:checkpoint|_\w+))(?:/|\.py$)"
)
_GENERATED = r"/[a-z2-7]{2}/c[a-z2-7]{40,}\.py$|^<eval_with_key>"
"""Files that Inductor and fx have generated."""
_PLUMBING = re.compile(
    rf"{_TORCH}|{_GENERATED}|(?:^|/)vllm/(?:distributed|compilation)/|"
    r"(?:^|/)(?:deep_ep|nixl_ep(?:_cu\d+)?)/|"
    r"(?:^|/)(?:contextlib|functools|typing_extensions|warnings)\.py$"
)
_OURS = re.compile(r"(?:^|/)(?:ncclscope/(?:tracing|guard|ring)|ncclscope_patches)/")
_INSTALLED = re.compile(
    r"/(?:site|dist)-packages/|(?:^|/)lib(?:64)?/python3\.\d+t?/|^<(?:string|frozen)\b"
)


class Sites(NamedTuple):
    """The call sites of one call.

    Attributes:
        site: The site in its short spelling.
        full: The site with its path, as far as that is known.
        user: The user's own site, with its path; None where it is ``site``, or unknown.
    """

    site: str | None = None
    full: str | None = None
    user: str | None = None


@lru_cache(_KNOWN)
def role(path: str) -> int:
    """Return the role of a source file, by its path alone."""
    return PLUMBING if _OURS.search(path) else library_role(path)


def library_role(path: str) -> int:
    """Return the role of a source file that is not ncclscope's."""
    if _PLUMBING.search(path):
        return PLUMBING
    return INSTALLED if _INSTALLED.search(path) else OWN


def spell(path: str, line: int, function: str) -> str:
    """Return the text of a call site; a long path is cut to its end.

    Args:
        path: Path of the source file.
        line: Line number.
        function: Name of the function.
    """
    if len(path) > LONGEST_PATH:
        path = f"...{path[3 - LONGEST_PATH :]}"
    return f"{path}:{line} {function}"


def short(text: str) -> str:
    """Return a call site with the base name of its file."""
    found = _SITE.fullmatch(text)
    if found is None:
        return text
    return f"{found[1].rpartition('/')[2]}{text[found.end(1) :]}"


def frame_of(text: str | None) -> dict[str, Any] | None:
    """Return the parts of a call site in the terms of the JSON verdict; None without one."""
    found = _SITE.fullmatch(text or "")
    if found is None:
        return None
    return {"file": found[1], "line": int(found[2][:18]), "function": found[3]}


def join(site: str, user: str | None) -> str:
    """Return the two sites of a call as one text, for a ring."""
    return f"{site}\n{user}" if user else site


@lru_cache(_KNOWN)
def read(text: str | None, user: str | None = None) -> Sites:
    """Return the sites in a text that :func:`join` made, or in a text in either spelling."""
    full, _, joined = (text or "").strip().partition("\n")
    if not full:
        return Sites()
    full, users = printable(full), printable((user or joined).strip())
    return Sites(short(full), full, users or None)

"""A request's arguments about routed experts, by which it opts in."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.encoding import ENCODINGS

OPT_IN = "return_routed_experts"
"""Key in a request's ``vllm_xargs``, and in the ``extra_args`` of sampling parameters."""
ENCODING = "routed_experts_encoding"
"""Key of the encoding in the server's answer."""
EVERY = "ncclscope_every_request"
"""Key that a server sets where its operator asked for the routing of all requests."""

_KEYS = (OPT_IN, ENCODING, EVERY)
_CLOSE = 0.7
"""Likeness of two keys from which one is taken for a misspelling of the other."""

# vLLM's server turns JSON's true into 1 on the way from vllm_xargs to extra_args.
_WORDS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class RoutingRequest:
    """The routing options of one request.

    Attributes:
        wanted: Whether it opted in.
        encoding: Encoding of the result in the answer.
        every: Whether the server's operator asked for the routing of all requests. The result then
            has the engine's own shape: all layers, and no tokens before the start that it names.
    """

    wanted: bool = False
    encoding: str = "npy"
    every: bool = False

    @classmethod
    def parse(cls, extra_args: Mapping[str, Any] | None) -> RoutingRequest:
        """Read a request's extra arguments.

        Args:
            extra_args: The extra arguments; other keys are ignored.

        Raises:
            UsageError: An argument about routed experts has an invalid value.
        """
        if not extra_args:
            return cls()
        encoding = extra_args.get(ENCODING, cls.encoding)
        if encoding not in ENCODINGS:
            raise UsageError(f"{ENCODING} is {encoding!r}", f"choose one of {', '.join(ENCODINGS)}")
        every = extra_args.get(EVERY) is True
        return cls(every or _truth(extra_args.get(OPT_IN, False)), encoding, every)


@functools.lru_cache(maxsize=256)
def misspelt(key: str) -> str:
    """Return the key about routed experts that another key looks like; empty if there is none."""
    close = difflib.get_close_matches(key, () if key in _KEYS else _KEYS, 1, _CLOSE)
    return close[0] if close else ""


def _truth(value: object) -> bool:
    word = str(int(value)) if isinstance(value, (int, float)) and value in (0, 1) else str(value)
    try:
        return _WORDS[word.lower()]
    except KeyError:
        raise UsageError(f"{OPT_IN} is {value!r}", "say true or false") from None

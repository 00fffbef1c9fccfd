"""What a request says about routed experts: nothing, unless it opts in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.encoding import ENCODINGS

__all__ = ["ENCODING", "OPT_IN", "RoutingRequest"]

OPT_IN = "return_routed_experts"
"""Key in a request's ``vllm_xargs``, and in the ``extra_args`` of sampling parameters."""
ENCODING = "routed_experts_encoding"
"""Key of the way in which the server writes them."""

# vLLM's server turns JSON's true into 1 on the way from vllm_xargs to extra_args.
_WORDS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class RoutingRequest:
    """What one request asks for.

    Attributes:
        wanted: Whether it opted in.
        encoding: How the server is to write the result.
    """

    wanted: bool = False
    encoding: str = "npy"

    @classmethod
    def parse(cls, extra_args: Mapping[str, Any] | None) -> RoutingRequest:
        """Read a request's extra arguments.

        Args:
            extra_args: Those; other keys are other people's.

        Raises:
            UsageError: A key of ours has a value that means nothing.
        """
        if not extra_args:
            return cls()
        encoding = extra_args.get(ENCODING, cls.encoding)
        if encoding not in ENCODINGS:
            raise UsageError(f"{ENCODING} is {encoding!r}", f"choose one of {', '.join(ENCODINGS)}")
        return cls(_truth(extra_args.get(OPT_IN, False)), encoding)


def _truth(value: object) -> bool:
    word = str(int(value)) if isinstance(value, (int, float)) and value in (0, 1) else str(value)
    try:
        return _WORDS[word.lower()]
    except KeyError:
        raise UsageError(f"{OPT_IN} is {value!r}", "say true or false") from None

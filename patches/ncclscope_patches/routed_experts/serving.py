"""What a server adds to a choice of its answer, or of a chunk of a stream.

    "routed_experts": "k05VTVBZAQB2AHsn...",
    "routed_experts_info": {"encoding": "npy", "first": 0, "tokens": 12, "prompt_tokens": 9,
                            "missing": 4, "missing_runs": [[0, 4]]}

The first field is vLLM's own where the encoding is ``npy``. The second says which tokens these are
and of which the numbers mean nothing.
"""

from __future__ import annotations

from typing import Any

from ncclscope_patches.routed_experts.encoding import encode_array
from ncclscope_patches.routed_experts.result import RoutedExperts

__all__ = ["FIELD", "INFO", "choice_fields"]

FIELD = "routed_experts"
"""Field of a choice that holds the array."""
INFO = "routed_experts_info"
"""Field of a choice that says what the array is."""


def choice_fields(result: RoutedExperts | None, encoding: str = "npy") -> dict[str, Any]:
    """Return what is to be added to a choice of completions, chat or either's stream.

    Args:
        result: Of the whole request, or of the tokens that a chunk of a stream is about.
        encoding: As the request asked for it.

    Returns:
        Nothing for a request that did not opt in.
    """
    if result is None:
        return {}
    return {
        FIELD: encode_array(result.ids, encoding),
        INFO: {
            "encoding": encoding,
            "first": result.first,
            "tokens": result.tokens,
            "prompt_tokens": result.prompt_tokens,
            "missing": result.missing_count,
            "missing_runs": [list(run) for run in result.missing_runs],
        },
    }

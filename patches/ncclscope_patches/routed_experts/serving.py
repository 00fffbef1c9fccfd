"""The fields that a server adds to a choice of its answer, or of a chunk of a stream.

    "routed_experts": "k05VTVBZAQB2AHsn...",
    "routed_experts_info": {"encoding": "npy", "first": 0, "tokens": 12, "prompt_tokens": 9,
                            "missing": 4, "missing_runs": [[0, 4]]}

With the encoding ``npy``, the first field is that of vLLM's own feature. The second says which
tokens these are, and which of them are missing.
"""

from __future__ import annotations

from typing import Any

from ncclscope_patches.routed_experts.encoding import encode_array
from ncclscope_patches.routed_experts.result import RoutedExperts

FIELD = "routed_experts"
"""Field of a choice that holds the array."""
INFO = "routed_experts_info"
"""Field of a choice that describes the array."""


def choice_fields(result: RoutedExperts | None, encoding: str = "npy") -> dict[str, Any]:
    """Return the fields to add to a choice of completions or chat, whole or streamed.

    Args:
        result: Routing of the whole request, or of the tokens of a chunk.
        encoding: The encoding that the request chose.

    Returns:
        The fields; empty for a request that did not opt in.
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

"""What a model runner's output carries of one step, and which rows of its batch belong to whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.shape import Ids, Mask

__all__ = ["RequestRows", "StepDelta", "check_rows"]


@dataclass(frozen=True)
class RequestRows:
    """Rows of a step's batch that belong to a request.

    Attributes:
        request: Its id.
        first: First row.
        count: How many follow each other; at least 1.
    """

    request: str
    first: int
    count: int


@dataclass(frozen=True)
class StepDelta:
    """What became known in one step.

    Attributes:
        rows: By request: experts of its tokens of this step, ``[new tokens, layers, top_k]``.
        missing: By request: which of them were not captured. Requests of which all were are
            left out.
        slots: By request: physical KV slots of those tokens, where the runner was given any.
        model: Whose routing it is.
    """

    rows: Mapping[str, Ids]
    missing: Mapping[str, Mask] = field(default_factory=dict)
    slots: Mapping[str, Ids] = field(default_factory=dict)
    model: str = "target"


def check_rows(rows: Sequence[RequestRows], limit: int) -> tuple[RequestRows, ...]:
    """Return the rows in the order of the batch; a copy that nobody else changes.

    Args:
        rows: Of the requests that opted in.
        limit: Rows that there can be.

    Raises:
        UsageError: Some lie outside, or belong to two requests.
    """
    ordered = tuple(sorted(rows, key=lambda own: own.first))
    end = 0
    for own in ordered:
        if own.count < 1 or own.first < end or own.first + own.count > limit:
            raise UsageError(
                f"request {own.request!r} cannot have {own.count} rows from row {own.first} on, "
                f"of {limit}"
            )
        end = own.first + own.count
    if len({own.request for own in ordered}) < len(ordered):
        raise UsageError("a request has its rows of a step in one piece")
    return ordered

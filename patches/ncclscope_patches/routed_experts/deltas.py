"""The routing of one step in a model runner's output, and the rows of each request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.shape import Ids, Mask


@dataclass(frozen=True)
class RequestRows:
    """Rows of a step's batch that belong to a request.

    Attributes:
        request: Id of the request.
        first: Index of its first row.
        count: Number of consecutive rows, at least 1.
    """

    request: str
    first: int
    count: int


@dataclass(frozen=True)
class StepDelta:
    """The routing of one step.

    Attributes:
        rows: Expert ids of each request's new tokens, ``[new tokens, layers, top_k]``.
        missing: Which of them were not captured, ``[new tokens]``, by request; without requests
            whose tokens were all captured.
        slots: Physical KV slots of those tokens by request, if the runner has them.
        model: Name of the model.
    """

    rows: Mapping[str, Ids]
    missing: Mapping[str, Mask] = field(default_factory=dict)
    slots: Mapping[str, Ids] = field(default_factory=dict)
    model: str = "target"


def check_rows(rows: Sequence[RequestRows], limit: int) -> tuple[RequestRows, ...]:
    """Return a validated copy of the rows, in the order of the batch.

    Args:
        rows: Rows of the requests that opted in.
        limit: Maximum number of rows of a batch.

    Raises:
        UsageError: Rows are out of range, or belong to two requests.
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

"""What the title of a process says of its place in the job.

vLLM's workers are called ``VLLM::Worker_DP1_TP0_EP2``: dimensions of size one are left out, the
prefix can be changed, and the text may grow or change with a release. So it is read loosely,
and believed last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

__all__ = ["is_worker_title", "parse_title", "ranks_from_labels"]

_WORKER = re.compile(
    r"^(?:\S+::)?\w*(?:Worker|Scheduler|EngineCore|Actor|Trainer)\w*(?:_[A-Z]+\d+)*(?:[.:\s]|$)",
    re.IGNORECASE,
)
_TITLED = re.compile(r"^\S+::")
_PART = re.compile(r"_([A-Z]{2,4})(\d{1,6})(?=_|\b)")
_DIMENSIONS = ("dp", "pp", "pcp", "tp")
"""Of a global rank, the slowest first."""


def is_worker_title(title: str) -> bool:
    """Whether a process that calls itself so may take part in collectives.

    Only titles with a prefix count (``VLLM::Worker_TP0``, ``ray::RayWorkerWrapper.execute``):
    anything may be called a worker.
    """
    return bool(_TITLED.match(title) and _WORKER.match(title))


def parse_title(title: str) -> dict[str, str]:
    """Returns ``{"dp": "1", "tp": "0", "ep": "2"}`` of ``VLLM::Worker_DP1_TP0_EP2``."""
    if not _TITLED.match(title):
        return {}
    return {name.lower(): number for name, number in _PART.findall(title.split(" ", 1)[0])}


def ranks_from_labels(labels: Iterable[Mapping[str, str]]) -> list[int] | None:
    """Returns the global rank of each process, where their labels tell them all apart.

    Sizes of the dimensions are the largest numbers that were seen, plus one.
    """
    places = [
        tuple(int(label.get(name, "0")) for name in _DIMENSIONS)
        for label in (dict(one) for one in labels)
    ]
    if not places or len(set(places)) < len(places):
        return None
    sizes = [max(place[index] for place in places) + 1 for index in range(len(_DIMENSIONS))]
    ranks = []
    for place in places:
        rank = 0
        for size, number in zip(sizes, place, strict=True):
            rank = rank * size + number
        ranks.append(rank)
    return ranks

"""Read a process's parallel ranks from its title.

vLLM's workers are titled ``VLLM::Worker_DP1_TP0_EP2``. Dimensions of size one are left out, the
prefix is configurable, and the format may change with a release. So titles are parsed loosely
and used only when no better source of ranks exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_WORKER = re.compile(
    r"^(?:\S+::)?\w*(?:Worker|Scheduler|EngineCore|Actor|Trainer)\w*(?:_[A-Z]+\d+)*(?:[.:\s]|$)",
    re.IGNORECASE,
)
_ENGINE = re.compile(r"^\S+::EngineCore")
_SERVER = re.compile(r"^\S+::(?:DPCoordinator|APIServer)")
_TITLED = re.compile(r"^\S+::")
_PART = re.compile(r"_([A-Z]{2,4})(\d{1,6})(?=_|\b)")
_DIMENSIONS = ("dp", "pp", "pcp", "tp")
"""Dimensions of a global rank, slowest first."""


def is_worker_title(title: str) -> bool:
    """Return whether a process with this title may take part in collectives.

    Only titles with a prefix count (``VLLM::Worker_TP0``, ``ray::RayWorkerWrapper.execute``):
    unrelated programs use the word "worker", too.
    """
    return bool(_TITLED.match(title) and _WORKER.match(title))


def is_engine_title(title: str) -> bool:
    """Return whether a process with this title sends requests to its workers."""
    return bool(_ENGINE.match(title))


def is_server_title(title: str) -> bool:
    """Return whether a process with this title receives requests, or passes messages on."""
    return bool(_SERVER.match(title))


def parse_title(title: str) -> dict[str, str]:
    """Return ``{"dp": "1", "tp": "0", "ep": "2"}`` of ``VLLM::Worker_DP1_TP0_EP2``."""
    if not _TITLED.match(title):
        return {}
    return {name.lower(): number for name, number in _PART.findall(title.split(" ", 1)[0])}


def ranks_from_labels(labels: Iterable[Mapping[str, str]]) -> list[int] | None:
    """Return the global rank of each process; None if two have the same labels.

    The size of a dimension is its largest number plus one.
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

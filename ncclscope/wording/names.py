"""Text for calls, communicators and ranks, the same on every screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from ncclscope.model import Call, Communicator, DamagedCall, Rank, Run, sites
from ncclscope.model.metadata import COORDINATOR, FRONTEND
from ncclscope.model.signature import CREATION_OPS
from ncclscope.model.text import plural, ranks_text, shape_text, sizes_text, verb
from ncclscope.model.unranked import Unranked
from ncclscope.untrusted import printable

__all__ = [
    "be",
    "by_words",
    "call_on",
    "call_text",
    "call_there",
    "comm_text",
    "have",
    "kept_text",
    "made_text",
    "numbered",
    "place_text",
    "placed",
    "plural",
    "rank_text",
    "ranks_text",
    "replay_text",
    "same_part",
    "sentence",
    "shape_text",
    "site_text",
    "sizes_text",
    "verb",
    "who_text",
]

_Who = TypeVar("_Who")


def same_part(comm: Communicator) -> str:
    """Say why groups without names are taken to have the same role."""
    return (
        f"{comm.part} have the same role: they were created one after the other and partition all "
        f"ranks"
    )


def by_words(said: Iterable[tuple[str, _Who]]) -> dict[str, list[_Who]]:
    """Return of whom the same is to be said, so that one sentence names them all."""
    found: dict[str, list[_Who]] = {}
    for words, who in said:
        found.setdefault(words, []).append(who)
    return found


def call_text(call: Call | None) -> str:
    """Return ``all_reduce sum [15,2] float32``: the attributes members must share, and the shape.

    For a new group, return its members: ``new_group of ranks 2 3 (gloo)``.
    """
    if call is None:
        return "nothing"
    if isinstance(call, DamagedCall):
        return "a damaged record"
    if call.op in CREATION_OPS:
        members = f" of {ranks_text(call.sizes)}" if call.sizes else ""
        return f"{call.op}{members}" + (f" ({call.dtype})" if call.dtype else "")
    parts = [call.op]
    if call.redop:
        parts.append(call.redop)
    if call.shape is not None:
        parts.append(shape_text(call.shape))
    elif call.numel:
        parts.append(f"{call.numel} elements")
    if call.dtype:
        parts.append(call.dtype)
    if call.global_root is not None:
        parts.append(f"root {call.global_root}")
    if call.peer is not None:
        parts.append(f"peer {call.peer}")
    return printable(" ".join(parts))


def placed(call: Call) -> str:
    """Return ``all_reduce sum [8] at train.py:41 main``: a call and where it came from."""
    return f"{call_text(call)}{site_text(call)}"


def numbered(comm: Communicator | None, seq: int | None, call: Call | None = None) -> str:
    """Return ``call 5 on tp:0 of ranks 0-3``, with what is known of it."""
    where = "" if comm is None else f" on {comm_text(comm)}"
    return f"call {seq}{where}" + ("" if call is None else f", {call_text(call)}")


def call_on(comm: Communicator, call: Call) -> str:
    """Return ``call 5 on tp:0 of ranks 0-3, all_reduce sum [8]``."""
    return numbered(comm, call.seq, call)


def call_there(comm: Communicator, call: Call) -> str:
    """Return ``all_reduce sum [8] on tp:0 of ranks 0-3``, for calls without a common number."""
    return f"{call_text(call)} on {comm_text(comm)}"


def replay_text(call: Call, *, numbered: bool = True) -> str:
    """Return ``replay 812 of graph 3, call 5 of 62``; empty for an eager call.

    Args:
        call: The call.
        numbered: Whether to include the number of the replay.
    """
    replay = call.replay
    if replay is None:
        return ""
    graph = f"graph {call.graph}" if call.graph else "a graph"
    text = f"replayed from {graph}"
    if numbered and replay.number:
        text = f"replay {replay.number} of {graph}"
    return f"{text}, call {replay.call} of {replay.calls}" if replay.call else text


def comm_text(comm: Communicator) -> str:
    """Return the communicator's display name: ``tp:0 of ranks 4-7``."""
    name = comm.label or f"communicator {comm.key[:12]}"
    return f"{name} of {ranks_text(comm.ranks)}" if comm.ranks else name


def made_text(ranks: Iterable[Rank]) -> str:
    """Return ``17 calls``: all recorded calls, the overwritten ones included.

    Groups that were made are no calls in any table, and do not count.
    """
    made = 0
    for rank in ranks:
        made -= sum(log.calls for log in rank.logs.values() if log.communicator.creates_groups)
        if rank.graphs:  # one record of a replay covers many calls
            made += sum(log.calls for log in rank.logs.values())
            made += sum(len(sent) for sent in rank.p2p.values())
        else:
            made += rank.records + rank.lost
    return plural(made, "call")


def kept_text(ranks: Sequence[Rank]) -> str:
    """Return ``17 calls kept``; for ranks that replayed graphs ``17 records kept``."""
    noun = "record" if any(rank.graphs for rank in ranks) else "call"
    return f"{plural(sum(rank.records for rank in ranks), noun)} kept"


def rank_text(run: Run, number: int) -> str:
    """Return ``rank 6 (node-15, pid 3408431)``; ``pid 4711 (node-15)`` without a rank."""
    rank = run.by_rank.get(number)
    if rank is not None and isinstance(rank.rank, Unranked):
        return f"{ranks_text([rank.rank])}{f' ({rank.host})' if rank.host else ''}"
    if rank is None or not (rank.host or rank.pid):
        return f"rank {number}"
    where = [rank.host] if rank.host else []
    if rank.pid:
        where.append(f"pid {rank.pid}")
    if (own := rank.details.get("own_rank")) is not None:
        where.append(f"rank {own} of its own job")
    return f"rank {number} ({', '.join(where)})"


def who_text(run: Run, ranks: Sequence[int]) -> str:
    """Return several ranks, or a single one with its host and process."""
    return rank_text(run, ranks[0]) if len(ranks) == 1 else ranks_text(ranks)


def have(ranks: Iterable[int]) -> str:
    """Return ``have``, or ``has`` for a single rank."""
    return "has" if len(set(ranks)) == 1 else "have"


def be(ranks: Iterable[int]) -> str:
    """Return ``are``, or ``is`` for a single rank."""
    return "is" if len(set(ranks)) == 1 else "are"


def sentence(text: str) -> str:
    """Return a text as the beginning of a sentence; host names keep their case."""
    return text[:1].upper() + text[1:]


def place_text(call: Call) -> str:
    """Return ``accelerator.py:3050 gather, from train.py:41 main``: the site, the user's line."""
    if not call.user_site:
        return call.site or ""
    return f"{call.site}, from {sites.short(call.user_site)}"


def site_text(call: Call) -> str:
    """Return `` at file.py:120 function``; empty where the site is not known.

    For a call that a CUDA graph replayed, return where it was captured, and which replay it was.
    """
    text = f" at {place_text(call)}" if call.site else ""
    return text if call.replay is None else f"{text} ({replay_text(call)})"


_ROLES = {COORDINATOR: "the coordinator", FRONTEND: "the front end"}


def process_text(process: Rank) -> str:
    """Return the name of a process that is no rank: ``engine 0 (pid 7)``, or ``process 7``."""
    name, role = process.labels.get("engine"), str(process.details.get("role"))
    if name is not None:
        return f"engine {name} (pid {process.pid})"
    return f"{_ROLES[role]} (pid {process.pid})" if role in _ROLES else f"process {process.pid}"

"""Read bundles of ``ncclscope attach -o DIR`` into a run with a process snapshot.

A bundle is a directory: ``attach.json`` holds the process snapshot, ``rings/`` the rings of a
traced job. The verdict in it is for people; reading derives it again from the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ncclscope.errors import DamagedFileError
from ncclscope.model import Rank, Run
from ncclscope.model.snapshot import (
    NO_PERMISSION,
    ProcessSample,
    RasAnswer,
    RasRank,
    Snapshot,
    Worker,
)
from ncclscope.untrusted import (
    MAX_RANKS,
    integer,
    number,
    open_regular,
    parse,
    printable,
    rank_number,
)

CAPTURE_FILE = "attach.json"
VERSION = 1
_FIRST = b'{"ncclscope_attach"'

_MOST_BYTES = 1 << 28
_MOST = 1 << 16
_LONGEST = 1 << 12

Item = TypeVar("Item")


def is_snapshot(path: Path) -> bool:
    """Return whether a file is a process snapshot, by its name or its first bytes."""
    if path.name == CAPTURE_FILE or path.suffix != ".json":
        return path.name == CAPTURE_FILE
    try:
        with open(open_regular(path), "rb") as file:
            return file.read(len(_FIRST)) == _FIRST
    except (OSError, DamagedFileError):
        return False


def read_snapshot(path: Path) -> Snapshot:
    """Read a process snapshot.

    Raises:
        DamagedFileError: The file is not a process snapshot.
        OSError: It cannot be read.
    """
    with open(open_regular(path), "rb") as file:
        data = file.read(_MOST_BYTES)
    try:
        document = parse(data)
    except ValueError:
        raise DamagedFileError(f"{path} is truncated or not JSON") from None
    if not isinstance(document, dict) or "ncclscope_attach" not in document:
        raise DamagedFileError(f"{path} is not a process snapshot of `ncclscope attach`")
    if document["ncclscope_attach"] != VERSION:
        raise DamagedFileError(
            f"{path} is a process snapshot of version {_text(document['ncclscope_attach'])[:20]}",
            f"this version of ncclscope reads version {VERSION}",
        )
    named = [one for one in _list(document.get("workers")) if _has_rank(one)]
    found = _object(Snapshot, {**document, "workers": named})
    if len({worker.rank for worker in found.workers}) < len(found.workers):
        raise DamagedFileError(f"{path} contains a rank more than once")
    workers = tuple(sorted(found.workers, key=lambda worker: worker.rank))
    return replace(found, workers=workers, gap=max(0.0, found.gap))


def _has_rank(worker: Any) -> bool:
    return isinstance(worker, dict) and rank_number(worker.get("rank")) >= 0


def with_snapshot(run: Run, snapshot: Snapshot) -> Run:
    """Add a process snapshot to a run.

    Args:
        run: The run of the rings; without ranks if the job was not traced.
        snapshot: The process snapshot.

    Returns:
        A run with a rank for each process whose stack or ring was read. If only some of the
        processes were traced, their records are left out: they prove nothing about the others.
        Before the first group exists, a process without a ring may just not have got that far.
    """
    recorded = run.by_rank
    notes = list(snapshot.notes)
    traced = [worker for worker in snapshot.workers if worker.rank in recorded]
    untraced = [worker for worker in snapshot.workers if worker.rank not in recorded]
    if traced and untraced and any(rank.logs for rank in run.ranks):
        notes.append(
            f"only {len(traced)} of {len(snapshot.workers)} processes were traced, so their "
            f"records are not used"
        )
        recorded = {}
    ranks: dict[int, Rank] = {}
    devices = snapshot.ras is not None or any(snapshot.gpus) or _is_refused(snapshot.workers)
    for worker in snapshot.workers:
        state = worker.samples[-1].state if worker.samples else ""
        known = recorded.get(worker.rank)
        if known is not None:
            ranks[worker.rank] = _as_seen(known, worker)
        elif devices or _is_known(worker, state):
            ranks[worker.rank] = _bare(worker, worker.host or snapshot.host, state)
    for number_, rank in recorded.items():
        # Of a host without a snapshot, only its rings are known.
        seen = rank.host in (snapshot.hosts or (snapshot.host,))
        # A process that was alive when its ring was copied may be in another container.
        gone = seen and rank.alive is not True
        ranks.setdefault(number_, replace(rank, alive=False) if gone else rank)
    world = max([worker.world_size for worker in snapshot.workers] or [0])
    return replace(
        run,
        ranks=tuple(ranks[number_] for number_ in sorted(ranks)),
        others=_others_as_seen(run, snapshot),
        communicators=run.communicators if recorded else {},
        expected=max([run.expected, min(world, MAX_RANKS), *(n + 1 for n in ranks)], default=0),
        untraced=tuple(one for one in run.untraced if one.rank not in ranks),
        notes=(*run.notes, *notes),
        snapshot=snapshot,
        kernel=snapshot.kernel,
        queues=snapshot.queues,
        locks={one.rank: one.locked_by for one in snapshot.workers if one.locked_by},
    )


def _others_as_seen(run: Run, snapshot: Snapshot) -> tuple[Rank, ...]:
    """Return the processes that are no ranks as they were when they were sampled.

    This machine may have the name of theirs, or they may have ended since.
    """
    sampled = (*snapshot.engines, *snapshot.servers)
    seen = {(one.host or snapshot.host, one.pid): one for one in sampled if one.samples}
    found = [(one, seen.get((one.host, one.pid))) for one in run.others]
    return tuple(_as_seen(one, worker) if worker else one for one, worker in found)


def _as_seen(process: Rank, worker: Worker) -> Rank:
    """Return a recorded process as its samples show it."""
    states = [one.state for one in worker.samples]
    stopped = {"stopped": True} if states and all(one == "T" for one in states) else {}
    is_alive = not states or states[-1] not in ("X", "Z")
    return replace(process, alive=is_alive, details={**process.details, **stopped})


def _is_refused(workers: Sequence[Worker]) -> bool:
    """Return whether the kernel shows no stack of any process, so that /proc alone is known."""
    return all(
        worker.stacks and all(one.error == NO_PERMISSION for one in worker.stacks)
        for worker in workers
    )


def _is_known(worker: Worker, state: str) -> bool:
    """Return whether stacks or a decisive state of a process were read."""
    return any(stacks.threads for stacks in worker.stacks) or state in ("T", "t", "X", "Z")


def _bare(worker: Worker, host: str, state: str) -> Rank:
    return Rank(
        rank=worker.rank,
        world_size=worker.world_size,
        host=host,
        pid=worker.pid,
        labels=worker.labels,
        alive=state not in ("X", "Z"),
        source=f"pid {worker.pid}",
    )


def _object(kind: Callable[..., Item], value: Mapping[str, Any]) -> Item:
    """Return a dataclass of a JSON object; a field that is absent or of another type is empty."""
    return kind(**{name: read(value.get(name)) for name, read in _fields(kind)})


@cache
def _fields(kind: Any) -> Sequence[tuple[str, Callable[[Any], Any]]]:
    """Return the names of a dataclass's fields, each with a function that reads its value."""
    hints = get_type_hints(kind).items()
    return [(name, _SPECIAL.get((kind, name)) or _reader(name, hint)) for name, hint in hints]


def _reader(name: str, hint: Any) -> Callable[[Any], Any]:
    """Return a function that reads a value of a type.

    Args:
        name: Name of the field.
        hint: Its type, with those of its elements.
    """
    if hint is int:
        return partial(number, largest=_LARGEST[name]) if name in _LARGEST else number
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    kind: Any = get_args(hint)[0]
    if get_origin(hint) is UnionType:
        return lambda value: _object(kind, value) if isinstance(value, dict) else None
    if is_dataclass(get_args(hint)[0]):
        return lambda value: tuple(
            _object(kind, item) for item in _list(value) if isinstance(item, dict)
        )
    read = _reader(name, kind)
    return lambda value: tuple(map(read, _list(value)))


def _list(value: Any) -> list[Any]:
    return value[:_MOST] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return printable(value[:_LONGEST]) if isinstance(value, str) else ""


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_text(item) for item in _list(value) if isinstance(item, str))


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if -1e15 < value < 1e15 else 0.0


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    return list(value.items())[:_MOST] if isinstance(value, dict) else ()


def _mapping(value: Any) -> dict[str, str]:
    return {_text(name): _text(item) for name, item in _items(value) if isinstance(item, str)}


def _integers(value: Any) -> dict[str, int]:
    found = ((_text(name), integer(item)) for name, item in _items(value))
    return {name: item for name, item in found if item is not None}


_SIMPLE: dict[Any, Callable[[Any], Any]] = {
    str: _text,
    bool: lambda value: value is True,
    float: _float,
    bool | None: lambda value: value if isinstance(value, bool) else None,
    tuple[str, ...]: _texts,
    Mapping[str, str]: _mapping,
    Mapping[str, int]: _integers,
}
_LARGEST = {
    "pid": 1 << 32,
    "tid": 1 << 32,
    "pids": 1 << 32,
    "line": 1 << 31,
    "switches": 1 << 62,
    "io_bytes": 1 << 62,
    "wakes_ns": 1 << 63,
    "time_ns": 1 << 63,
}
"""Largest plausible value of a field; for others that of :func:`~ncclscope.untrusted.number`."""
_SPECIAL: dict[tuple[type, str], Callable[[Any], Any]] = {
    (ProcessSample, "state"): lambda value: _text(value)[:1],
    (RasAnswer, "text"): lambda value: value if isinstance(value, str) else "",
    (RasRank, "async_error"): lambda value: integer(value) or 0,
    (Snapshot, "node"): lambda value: "",  # that of the folder
    (Worker, "accepted"): lambda value: tuple(
        tuple(map(rank_number, _list(peers))) for peers in _list(value)
    ),
    (Worker, "locked_by"): lambda value: tuple(map(rank_number, _list(value))),
    (Worker, "other_end"): rank_number,
}

"""Read bundles of ``ncclscope attach -o DIR`` into a run with a process snapshot.

A bundle is a directory: ``attach.json`` holds the process snapshot, ``rings/`` the rings of a
traced job. The verdict in it is for people; reading derives it again from the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ncclscope.errors import DamagedFileError
from ncclscope.model import Rank, Run
from ncclscope.model.snapshot import (
    Frame,
    GpuSample,
    ProcessSample,
    RasAnswer,
    RasComm,
    RasRank,
    Snapshot,
    Source,
    Stacks,
    Thread,
    Worker,
)
from ncclscope.untrusted import MAX_RANKS, integer, number, open_regular, parse, printable

__all__ = ["CAPTURE_FILE", "is_snapshot", "read_snapshot", "with_snapshot"]

CAPTURE_FILE = "attach.json"
VERSION = 1
_FIRST = b'{"ncclscope_attach"'

_MOST_BYTES = 1 << 28
_MOST = 1 << 16
_MOST_PIDS = 1 << 32
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
    workers = _each(document.get("workers"), _worker)
    if len({worker.rank for worker in workers}) < len(workers):
        raise DamagedFileError(f"{path} contains a rank more than once")
    ras, ras_before = document.get("ras"), document.get("ras_before")
    return Snapshot(
        host=_text(document.get("host")),
        time_ns=number(document.get("time_ns"), 1 << 63),
        gap=max(0.0, _float(document.get("gap"))),
        workers=tuple(sorted(workers, key=lambda worker: worker.rank)),
        sources=_each(document.get("sources"), _source),
        ras=_ras(ras) if isinstance(ras, dict) else None,
        ras_before=_ras(ras_before) if isinstance(ras_before, dict) else None,
        gpus=tuple(_each(sample, _gpu) for sample in _list(document.get("gpus"))),
        dead_rings=_texts(document.get("dead_rings")),
        notes=_texts(document.get("notes")),
        versions=_mapping(document.get("versions")),
        redacted=document.get("redacted") is True,
        hosts=_texts(document.get("hosts")),
    )


def with_snapshot(run: Run, snapshot: Snapshot) -> Run:
    """Add a process snapshot to a run.

    Args:
        run: The run of the rings; without ranks if the job was not traced.
        snapshot: The process snapshot.

    Returns:
        A run with a rank for each process whose stack or ring was read. If only some of the
        processes were traced, their records are left out: they prove nothing about the others.
    """
    recorded = run.by_rank
    notes = list(snapshot.notes)
    traced = [worker for worker in snapshot.workers if worker.rank in recorded]
    untraced = [worker for worker in snapshot.workers if worker.rank not in recorded]
    if traced and untraced:
        notes.append(
            f"only {len(traced)} of {len(snapshot.workers)} processes were traced, so their "
            f"records are not used"
        )
        recorded = {}
    ranks: dict[int, Rank] = {}
    devices = snapshot.ras is not None or any(snapshot.gpus)
    for worker in snapshot.workers:
        state = worker.samples[-1].state if worker.samples else ""
        known = recorded.get(worker.rank)
        if known is not None:
            ranks[worker.rank] = replace(known, alive=state not in ("X", "Z"))
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
        communicators=run.communicators if recorded else {},
        expected=max([run.expected, min(world, MAX_RANKS), *(n + 1 for n in ranks)], default=0),
        notes=(*run.notes, *notes),
        snapshot=snapshot,
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


def _worker(value: Mapping[str, Any]) -> Worker | None:
    rank = integer(value.get("rank"))
    if rank is None or not 0 <= rank < MAX_RANKS:
        return None
    return Worker(
        pid=number(value.get("pid"), _MOST_PIDS),
        rank=rank,
        rank_source=_text(value.get("rank_source")),
        world_size=number(value.get("world_size")),
        local_world_size=number(value.get("local_world_size")),
        title=_text(value.get("title")),
        labels=_mapping(value.get("labels")),
        environment=_mapping(value.get("environment")),
        rings=_texts(value.get("rings")),
        samples=_each(value.get("samples"), _sample),
        stacks=_each(value.get("stacks"), _stacks),
        host=_text(value.get("host")),
    )


def _sample(value: Mapping[str, Any]) -> ProcessSample:
    return ProcessSample(
        state=_text(value.get("state"))[:1],
        cpu_seconds=_float(value.get("cpu_seconds")),
        main_cpu_seconds=_float(value.get("main_cpu_seconds")),
        switches=number(value.get("switches"), 1 << 62),
        wchan=_text(value.get("wchan")),
        threads=_integers(value.get("threads")),
        blocked=_text(value.get("blocked")),
    )


def _stacks(value: Mapping[str, Any]) -> Stacks:
    return Stacks(_each(value.get("threads"), _thread), _text(value.get("error")))


def _thread(value: Mapping[str, Any]) -> Thread:
    return Thread(
        name=_text(value.get("name")),
        tid=number(value.get("tid"), _MOST_PIDS),
        frames=_each(value.get("frames"), _frame),
        native=_texts(value.get("native")),
    )


def _frame(value: Mapping[str, Any]) -> Frame:
    return Frame(
        function=_text(value.get("function")),
        file=_text(value.get("file")),
        line=number(value.get("line"), 1 << 31),
        counters=_integers(value.get("counters")),
        path=_text(value.get("path")),
        installed=known if isinstance(known := value.get("installed"), bool) else None,
        calls=_texts(value.get("calls")),
    )


def _source(value: Mapping[str, Any]) -> Source:
    return Source(
        name=_text(value.get("name")),
        available=value.get("available") is True,
        state=_text(value.get("state")),
        enable=_text(value.get("enable")),
    )


def _gpu(value: Mapping[str, Any]) -> GpuSample:
    return GpuSample(
        index=number(value.get("index")),
        name=_text(value.get("name")),
        utilisation=number(value.get("utilisation")),
        memory_utilisation=number(value.get("memory_utilisation")),
        watts=_float(value.get("watts")),
        limit_watts=_float(value.get("limit_watts")),
        pids=tuple(number(pid, _MOST_PIDS) for pid in _list(value.get("pids"))),
    )


def _ras(value: Mapping[str, Any]) -> RasAnswer:
    return RasAnswer(
        text=answer if isinstance(answer := value.get("text"), str) else "",
        version=_text(value.get("version")),
        comms=_each(value.get("comms"), _ras_comm),
        remarks=_texts(value.get("remarks")),
        is_json=value.get("is_json") is True,
        communicators=number(value.get("communicators")),
    )


def _ras_comm(value: Mapping[str, Any]) -> RasComm:
    return RasComm(
        _text(value.get("hash")),
        number(value.get("size")),
        _each(value.get("ranks"), _ras_rank),
        _integers(value.get("usual")),
    )


def _ras_rank(value: Mapping[str, Any]) -> RasRank:
    return RasRank(
        rank=number(value.get("rank")),
        host=_text(value.get("host")),
        pid=number(value.get("pid"), _MOST_PIDS),
        counts=_integers(value.get("counts")),
        async_error=integer(value.get("async_error")) or 0,
        aborted=value.get("aborted") is True,
        missing=value.get("missing") is True,
        dead=value.get("dead") is True,
    )


def _each(value: Any, read: Callable[[Mapping[str, Any]], Item | None]) -> tuple[Item, ...]:
    found = (read(item) for item in _list(value) if isinstance(item, dict))
    return tuple(item for item in found if item is not None)


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

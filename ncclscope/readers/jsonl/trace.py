"""Read and write trace JSONL, version 1; docs/json.md describes it."""

from __future__ import annotations

import bisect
import contextlib
import gzip
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import IO, Any, cast

from ncclscope import untrusted
from ncclscope.errors import DamagedFileError
from ncclscope.model import Activity, Call, Communicator, Rank, State, Step
from ncclscope.model.graphs import Graph
from ncclscope.model.memory import ListLog
from ncclscope.model.metadata import metadata_of, read_metadata
from ncclscope.model.signature import MASK, P2P_OPS, canonical_dtype, canonical_op, canonical_redop
from ncclscope.model.sites import read as read_sites
from ncclscope.private import open_private
from ncclscope.readers.budget import Budget
from ncclscope.readers.jsonl import graphs as jsonl_graphs
from ncclscope.readers.jsonl import transfers as jsonl_transfers
from ncclscope.readers.unpacked import Unpacked

VERSION = 1
MAX_LINE = 1 << 20
"""Longest line to read, in bytes: an untrusted file must not fill the memory."""
MAX_UNPACKED = 1 << 30
"""Most bytes to decompress: a few compressed bytes can expand to gigabytes."""
MAX_DIMENSIONS = 64
MAX_ACTIVITIES = 64
MAX_SEQ = 1 << 62
_CHECK_EVERY = 256
_CHECK_EVERY_BYTES = 1 << 20

_STATES = {state.word: state for state in State}
_HEADER = (
    *("rank", "world_size", "host", "pid", "gpu", "labels"),
    *("started_ns", "last_seen_ns", "exited"),
)
_PARAMETERS = ("shape", "dtype", "redop", "root", "peer", "sizes", "out_shape")
_RARE = ("out_sizes", "user_site", "group", "graph", "thread")
"""Fields of a call that its line leaves out where they are unknown."""


def is_trace(path: Path) -> bool:
    """Return whether a file has the name of a trace: ``*.jsonl`` or ``*.jsonl.gz``."""
    return path.name.endswith((".jsonl", ".jsonl.gz"))


def read_trace(path: Path) -> Rank:
    """Read one process's trace.

    Raises:
        DamagedFileError: The header is missing or of another version, a line is not JSON, or
            the file is too large.
        OSError: The file cannot be read.
    """
    budget = Budget(str(path), path.stat().st_size)
    lines = _lines(path, budget)
    header = next(lines, None)
    if header is None or "ncclscope_trace" not in header:
        raise DamagedFileError(
            f"{path} is not a trace", 'its first line should be {"ncclscope_trace": 1, ...}'
        )
    if header["ncclscope_trace"] != VERSION:
        raise DamagedFileError(
            f"{path} is a trace of version {untrusted.text(header['ncclscope_trace']) or '?'}"[
                :200
            ],
            f"this version of ncclscope reads version {VERSION}",
        )
    communicators: dict[str, Communicator] = {}
    members: dict[int, int] = {}
    made: dict[str, int] = {}
    calls: dict[str, list[Call]] = {}
    p2p: dict[str, list[Call]] = {}
    steps: list[Step] = []
    graphs: dict[int, Graph] = {}
    transfers = jsonl_transfers.Transfers()
    numbered = stated = False
    position = 0
    for line in lines:
        key = untrusted.text(line.get("comm"))
        op = untrusted.text(line.get("call"))
        if key is not None and op is not None:
            call = _call(line, key, canonical_op(op), position)
            position += 1
            numbered = numbered or call.seq > 0
            stated = stated or "state" in line
            target = p2p if call.op in P2P_OPS else calls
            target.setdefault(key, []).append(call)
        elif key is not None and "call" not in line:
            communicators[key] = _communicator(line, key, members)
            made[key] = untrusted.number(line.get("calls"), MAX_SEQ)
        elif (step := untrusted.integer(line.get("step"))) is not None:
            if 0 <= step < MAX_SEQ:
                tokens = untrusted.integer(line.get("tokens"))
                steps.append(Step(step, position, tokens, bool(line.get("dummy"))))
        elif len(graphs) < jsonl_graphs.MOST and (graph := jsonl_graphs.read(line)):
            graphs[graph.number] = graph
        else:
            transfers.add(line)
    window = bool(header.get("window"))
    logs = {}
    lost = 0
    for place, key in enumerate({**communicators, **calls, **p2p}):
        if not place % _CHECK_EVERY:
            budget.check(f"{position} calls")
        communicator = communicators.get(key) or Communicator(key)
        own = _renumber(calls.get(key, []), p2p.get(key, []))
        logs[key] = ListLog(communicator, own, anchored=not window, made=made.get(key, 0))
        lost += logs[key].first - 1
    budget.check(f"{position} calls")
    metadata = read_metadata(header.get("told"))
    return Rank(
        rank=untrusted.rank_number(header.get("rank")),
        world_size=untrusted.number(header.get("world_size")),
        host=untrusted.text(header.get("host")) or "",
        pid=untrusted.number(header.get("pid"), 1 << 31),
        gpu=untrusted.integer(header.get("gpu")),
        labels=untrusted.texts(header.get("labels")),
        logs=logs,
        p2p=p2p,
        records=position,
        lost=lost,
        window=window,
        last_seen_ns=untrusted.integer(header.get("last_seen_ns")),
        started_ns=untrusted.integer(header.get("started_ns")),
        exited=bool(header.get("exited")),
        steps=steps,
        activities=_activities(header),
        graphs=graphs,
        transfers=transfers.all(),
        source=str(path),
        details={
            "format": "jsonl",
            "numbered": numbered,
            "stated": stated,
            "run": untrusted.text(header.get("run")) or "",
            **jsonl_transfers.add_waiting(metadata, transfers.all()),
        },
    )


def write_trace(rank: Rank, path: str | os.PathLike[str], *, last: int | None = None) -> None:
    """Write a rank as a trace.

    Args:
        rank: The rank, read from a ring or another source.
        path: ``*.jsonl`` or ``*.jsonl.gz``.
        last: Write only the last `last` calls, without sequence numbers, like a bounded buffer
            in the program. The header then marks the trace as a window.
    """
    calls = rank.kept_calls()
    steps = sorted(rank.steps, key=lambda step: step.position, reverse=True)
    if last is not None:
        calls = calls[-last:] if last else []
        oldest = calls[0].position if calls else 0
        steps = [step for step in steps if step.position >= oldest]
    with _open(Path(path)) as file:
        header = {
            "ncclscope_trace": VERSION,
            **{name: getattr(rank, name) for name in _HEADER},
            "labels": dict(rank.labels),
            "run": untrusted.text(rank.details.get("run")) or "",
            "activities": [asdict(activity) for activity in rank.activities.values()],
        }
        if last is not None or rank.window:
            header["window"] = True
        if metadata := metadata_of(rank.details):
            header["told"] = metadata
        _write_line(file, header)
        for log in rank.logs.values():
            about = log.communicator.to_dict()
            about["comm"] = about.pop("key")
            if log.calls and log.first > log.calls and last is None:
                about["calls"] = log.calls  # no call's line implies it
            _write_line(file, about)
        for graph in rank.graphs.values():
            _write_line(file, jsonl_graphs.line_of(graph))
        for transfer in rank.transfers:
            _write_line(file, jsonl_transfers.line_of(transfer))
        for call in calls:
            while steps and steps[-1].position <= call.position:
                _write_line(file, _step_line(steps.pop()))
            _write_line(file, _line(call, numbered=last is None and not rank.window))
        while steps:
            _write_line(file, _step_line(steps.pop()))


def _activities(header: Mapping[str, Any]) -> dict[str, Activity]:
    found = {}
    listed = header.get("activities")
    for about in listed[:MAX_ACTIVITIES] if isinstance(listed, list) else ():
        if isinstance(about, dict) and (name := untrusted.text(about.get("name"))) is not None:
            found[name] = Activity(
                name,
                untrusted.text(about.get("detail")),
                untrusted.number(about.get("number"), MAX_SEQ),
                untrusted.number(about.get("count"), MAX_SEQ),
                untrusted.number(about.get("since_ns"), MAX_SEQ),
                untrusted.number(about.get("until_ns"), MAX_SEQ) or None,
            )
    return found


def _line(call: Call, *, numbered: bool) -> dict[str, Any]:
    line: dict[str, Any] = {"call": call.op, "comm": call.comm}
    if numbered:
        line["seq"] = call.seq
    line |= {
        "t_ns": call.time_ns,
        **{name: getattr(call, name) for name in _PARAMETERS},
        "state": call.state.word,
        "captured": call.captured,
        "site": call.site and (call.full_site or call.site),
    }
    if call.numel is not None and (call.shape is None or call.numel != prod(call.shape)):
        line["numel"] = call.numel
    line |= {name: value for name in _RARE if (value := getattr(call, name)) not in (None, 0)}
    if call.replay is not None:
        line |= jsonl_graphs.fields_of(call.replay)
    if call.op not in P2P_OPS and call.signature != call.sign():
        line["signature"] = call.signature  # its signed fields are lost, or were never written
    return line


def _step_line(step: Step) -> dict[str, Any]:
    return {"step": step.number, "tokens": step.tokens, "dummy": step.dummy}


def _write_line(file: IO[str], value: Mapping[str, Any]) -> None:
    file.write(json.dumps(value, separators=(",", ":")) + "\n")


@contextlib.contextmanager
def _open(path: Path) -> Iterator[IO[str]]:
    with contextlib.ExitStack() as stack:
        file: IO[bytes] = stack.enter_context(open_private(path))
        if path.suffix == ".gz":
            file = cast("IO[bytes]", stack.enter_context(gzip.GzipFile(path, "wb", fileobj=file)))
        yield stack.enter_context(io.TextIOWrapper(file, encoding="utf-8", errors="replace"))


def _lines(path: Path, budget: Budget) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file, without an incomplete last line."""
    with open(untrusted.open_regular(path), "rb") as raw:
        packed = path.suffix == ".gz"
        data: IO[bytes] = io.BufferedReader(Unpacked(raw, path, budget)) if packed else raw
        read = checked = count = 0
        while line := data.readline(MAX_LINE):
            count += 1
            read += len(line)
            if not count % _CHECK_EVERY or read - checked > _CHECK_EVERY_BYTES:
                checked = read
                budget.check(f"{count} lines")
            if len(line) >= MAX_LINE and not line.endswith(b"\n"):
                raise DamagedFileError(f"{path}:{count} is longer than {MAX_LINE} bytes")
            if packed and read > MAX_UNPACKED:
                raise DamagedFileError(
                    f"{path} expands to more than {MAX_UNPACKED >> 20} MB", "decompress it first"
                )
            value = _value(line)
            if isinstance(value, dict):
                yield value
            elif value is _NO_JSON:
                if not line.endswith(b"\n") or not data.read(1):
                    return
                raise DamagedFileError(f"{path}:{count} is not JSON")


_NO_JSON = object()


def _value(line: bytes) -> Any:
    if not line.strip():
        return None
    try:
        return untrusted.parse(line.decode("utf-8", "replace"))
    except ValueError:
        return _NO_JSON


def _call(line: Mapping[str, Any], key: str, op: str, position: int) -> Call:
    dtype, redop = untrusted.text(line.get("dtype")), untrusted.text(line.get("redop"))
    shape = untrusted.integers(line.get("shape"), MAX_DIMENSIONS)
    numel = untrusted.integer(line.get("numel"))
    if numel is None and shape is not None:
        numel = untrusted.integer(prod(shape))
    seq = untrusted.integer(line.get("seq")) or 0
    places = read_sites(untrusted.text(line.get("site")), untrusted.text(line.get("user_site")))
    call = Call(
        op=op,
        comm=key,
        seq=seq if 0 < seq < MAX_SEQ else 0,
        position=position,
        dtype=None if dtype is None else canonical_dtype(dtype),
        redop=None if redop is None else canonical_redop(redop),
        root=untrusted.integer(line.get("root")),
        peer=untrusted.integer(line.get("peer")),
        numel=numel,
        shape=shape,
        sizes=untrusted.integers(line.get("sizes")),
        out_shape=untrusted.integers(line.get("out_shape"), MAX_DIMENSIONS),
        out_sizes=untrusted.integers(line.get("out_sizes")),
        site=places.site,
        full_site=places.full,
        user_site=places.user,
        time_ns=untrusted.integer(line.get("t_ns")),
        state=_STATES.get(untrusted.text(line.get("state")) or "", State.SCHEDULED),
        captured=bool(line.get("captured")),
        group=untrusted.integer(line.get("group")),
        graph=untrusted.integer(line.get("graph")),
        thread=untrusted.integer(line.get("thread")) or 0,
        replay=jsonl_graphs.read_replay(line),
    )
    signature = untrusted.integer(line.get("signature")) or 0
    if not 0 < signature <= MASK or op in P2P_OPS:
        signature = call.sign()
    return replace(call, signature=signature)


def _renumber(calls: Sequence[Call], p2p: Sequence[Call]) -> list[Call]:
    """Give collectives consecutive sequence numbers.

    Consecutive numbers in the file are kept. If sends and receives share the numbering, it is
    corrected for them. If lines are missing in the middle, the calls after the last gap are kept.

    Args:
        calls: Collectives of one communicator, in order.
        p2p: Sends and receives of that communicator.
    """
    between = sorted(call.seq for call in p2p if call.seq) if _share(calls, p2p) else []
    numbered: list[Call] = []
    for order, call in enumerate(calls, 1):
        seq = call.seq
        if seq:
            seq -= bisect.bisect_left(between, seq)
        else:
            seq = numbered[-1].seq + 1 if numbered else order
        if numbered and seq != numbered[-1].seq + 1:
            numbered = []
        numbered.append(call if call.seq == seq else replace(call, seq=seq))
    return numbered


def _share(calls: Sequence[Call], p2p: Sequence[Call]) -> bool:
    """Return whether collectives and point-to-point calls share one numbering.

    If they do, the number increases by one wherever one kind follows the other.
    """
    both = sorted((*calls, *p2p), key=lambda call: call.position)
    return all(
        after.seq == before.seq + 1
        for before, after in pairwise(both)
        if (before.op in P2P_OPS) != (after.op in P2P_OPS)
    )


def _communicator(line: Mapping[str, Any], key: str, known: dict[int, int]) -> Communicator:
    """Return a communicator whose members are numbers of `known`.

    JSON makes each number anew. Communicators of a large job would hold millions of equal ones.
    """
    ranks = untrusted.integers(line.get("ranks")) or ()
    return Communicator(
        key=key,
        label=untrusted.text(line.get("label")) or "",
        ranks=tuple(map(known.setdefault, ranks, ranks)),
        backend=untrusted.text(line.get("backend")) or "",
        created_at=untrusted.text(line.get("created_at")),
    )

"""The history of a job as files: rings, traces, and Flight Recorder dumps of two versions."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.runners.dumps import pickled
from ncclscope.model import CREATION_SUFFIX
from ncclscope.readers import open_run
from ncclscope.readers.jsonl import write_trace
from ncclscope.ring import writer as ring_writer
from ncclscope.tracing import scope
from ncclscope.tracing.tracer import Comm, Tracer
from tests.corpus.workload import BEGAN_NS, SENDS, History, Post, Posted, Workload

__all__ = ["DUMPS", "FORMATS", "PREFIX", "RECORDS", "write", "write_dumps"]

PREFIX = "comm_lib_trace_rank_"
RECORDS = ("rings", "jsonl")
DUMPS = ("torch-2.13", "torch-2.15")
FORMATS = (*RECORDS, *DUMPS)
_DTYPES = {
    "float32": "Float",
    "float64": "Double",
    "bfloat16": "BFloat16",
    "float16": "Half",
    "int64": "Long",
    "int32": "Int",
}
_NATIVE = {
    "all_gather": "_all_gather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_gatherv": "all_gather",
    "reduce_scatterv": "reduce_scatter",
}
_HOOKED = {**_NATIVE, "all_to_all": "all_to_all_single"}
_RECORDED = ("redop", "root", "peer", "sizes", "out_sizes", "out_shape", "site")
_REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatterv")
_LIBRARY = "/opt/venv/lib/python3.12/site-packages"


def write(workload: Workload, directory: Path, kind: str) -> None:
    """Write a job in one of the formats.

    Args:
        workload: The job.
        directory: An empty folder.
        kind: One of :data:`FORMATS`.
    """
    history = workload.play()
    if kind == "rings":
        _write_rings(workload, history, directory)
    elif kind == "jsonl":
        _write_traces(workload, history, directory)
    else:
        write_dumps(workload, history, directory, kind)


# --- rings and traces -----------------------------------------------------------------------------


def _write_rings(workload: Workload, history: History, directory: Path) -> None:
    clock = _Clock()
    for rank in workload.everybody:
        if rank in workload.no_ring:
            continue
        clock.now = BEGAN_NS
        with clock.installed():
            tracer = Tracer(
                directory,
                rank=rank,
                world_size=workload.size,
                capacity=workload.capacity,
                heartbeat=False,
                # As processes of other hosts, whose pids nobody checks here.
                details={
                    "host": f"node-{rank // 8}",
                    "pid": 1000 + rank,
                    "boot_id": "",
                    "started_ns": BEGAN_NS,
                    **workload.about.get(-1, {}),
                    **workload.about.get(rank, {}),
                },
            )
            posted = [each for each in history.posted[rank] if not each.post.silent]
            _record(workload, tracer, posted, clock)
            clock.now = history.last_seen_ns[rank]
            tracer.ring.store_heartbeat()
            how = history.ended.get(rank)
            if how not in (None, "exit", "killed"):
                tracer.describe(ended_with=how)
            if how not in (None, "killed"):
                tracer.close()


class _Clock:
    """The time of a job, in place of that of the machine.

    Attributes:
        now: Nanoseconds since 1970.
    """

    def __init__(self) -> None:
        self.now = BEGAN_NS

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Write rings with this clock, by the writer in Python: the core has its own."""
        with (
            patch.dict(os.environ, NCCLSCOPE_NATIVE="0"),
            patch.object(ring_writer, "now_ns", lambda: self.now),
        ):
            yield


def _record(workload: Workload, tracer: Tracer, posted: Sequence[Posted], clock: _Clock) -> None:
    comms: dict[str, Comm] = {}
    for label, members in workload.groups.items():
        if tracer.rank in members:
            key = label + "/" + ",".join(map(str, members))
            suffix = CREATION_SUFFIX if label.endswith("groups") else ""
            backend = "store" if suffix else workload.backend
            comms[label] = tracer.communicator(key + suffix, label, members, backend)
    batch = 0
    for each in posted:
        call = each.post
        clock.now = each.time_ns
        if batch and call.batch != batch:
            scope.leave_group()
            batch = 0
        if call.batch and not batch:
            scope.enter_group()
            batch = call.batch
        more = {key: call.more[key] for key in _RECORDED if key in call.more}
        if call.op in _REDUCING:
            more.setdefault("redop", "sum")
        more.setdefault("site", f"train.py:10 {call.op}")
        place = tracer.record(
            comms[call.group],
            call.op,
            shape=call.shape,
            dtype=call.dtype,
            captured=call.captured,
            **more,
        )
        # NCCL's calls return when they are posted; a barrier holds the host on every backend.
        if each.done and (workload.backend == "gloo" or call.waits):
            tracer.complete(place)
    if batch:
        scope.leave_group()


def _write_traces(workload: Workload, history: History, directory: Path) -> None:
    rings = directory / "rings"
    rings.mkdir()
    _write_rings(workload, history, rings)
    for rank in open_run(rings).ranks:
        path = directory / f"rank-{rank.rank}.jsonl"
        write_trace(rank, path, last=workload.keep)
        with path.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in workload.lines.get(rank.rank, ()))
    if workload.bare:
        _strip(directory)
    for path in rings.iterdir():
        path.unlink()
    rings.rmdir()


def _strip(directory: Path) -> None:
    """Reduce traces to what the format requires, and what distinguishes calls."""
    for path in directory.glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        kept = ("ncclscope_trace", "rank", "world_size", "comm", "label", "ranks", "call")
        kept += ("shape", "dtype", "redop", "root", "peer", "sizes", "out_shape", "site")
        short = [{key: line[key] for key in kept if line.get(key) is not None} for line in lines]
        path.write_text("".join(json.dumps(line) + "\n" for line in short))


# --- Flight Recorder dumps ------------------------------------------------------------------------


def write_dumps(workload: Workload, history: History, directory: Path, kind: str) -> None:
    """Write the Flight Recorder dumps of a job.

    Args:
        workload: The job.
        history: How far it came.
        directory: An empty folder.
        kind: One of :data:`DUMPS`.
    """
    for rank in workload.everybody:
        gone = history.ended.get(rank, "exit") != "exit" or rank in workload.ends
        if rank in workload.no_dump or (gone and not workload.aborted):
            continue
        path = directory / f"{PREFIX}{rank}"
        posted = [each for each in history.posted[rank] if not each.post.silent]
        value = _Dump(workload, rank, hooked=kind == "torch-2.15").value(posted)
        path.write_bytes(pickled(value))
        written = max(history.last_seen_ns)
        os.utime(path, ns=(written, written))


class _Dump:
    """The dump of one rank.

    torch 2.13 records in the backend itself. In torch 2.15 ``nccl`` is a new implementation, and
    hooks on the process group record: lists of outputs as the caller passed them, another
    spelling of all_to_all, no input of a receive.
    """

    def __init__(self, workload: Workload, rank: int, *, hooked: bool) -> None:
        self._work = workload
        self._rank = rank
        self._hooked = hooked and workload.backend == "nccl"
        self._newer = hooked
        self._names = {label: str(number) for number, label in enumerate(workload.groups)}
        self._counts: dict[tuple[str, bool], int] = {}
        self._ops: dict[str, int] = {}
        self._entries: list[dict[str, Any]] = []

    def value(self, posted: Sequence[Posted]) -> dict[str, Any]:
        """Return the dump, as torch pickles it."""
        for batch, calls in itertools.groupby(posted, key=lambda each: each.post.batch):
            if batch:
                self._enter_batch(list(calls))
            else:
                for each in calls:
                    self._enter(each)
        keep = self._work.keep
        return {
            "version": "2.10",
            "pg_config": self._config(),
            "comm_lib_version": "" if self._work.backend == "gloo" or self._hooked else "2.29.7",
            "pg_status": {},
            "entries": self._entries if keep is None else self._entries[-keep:],
        }

    def _config(self) -> dict[str, Any]:
        own = {label: ranks for label, ranks in self._work.groups.items() if self._rank in ranks}
        if self._work.backend == "gloo":  # described under no name, and by 2.13 without members
            last = list(own.values())[-1] if self._newer else ()
            return {"": {"name": "", "desc": "", "ranks": str(list(last))}}
        return {
            self._names[label]: {
                "name": self._names[label],
                "desc": self._description(label),
                "ranks": str(list(ranks)),
            }
            for label, ranks in own.items()
        }

    def _description(self, label: str) -> str:
        return "default_pg" if label == "world" else label.partition(":")[0]

    def _enter_batch(self, calls: list[Posted]) -> None:
        for number, each in enumerate(calls):
            self._enter(each, again=number > 0 and each.post.op not in SENDS)
        if not self._hooked and calls[0].post.op not in SENDS:
            end = Post("coalesced", calls[0].post.group, (), "float32", {})
            self._enter(Posted(end, calls[-1].time_ns, 0, done=calls[-1].done), again=True)

    def _enter(self, each: Posted, *, again: bool = False) -> None:
        call, work = each.post, self._work
        p2p = call.op in SENDS
        key = call.group, p2p
        self._counts[key] = self._counts.get(key, 0) + (not again)
        self._ops[call.group] = self._ops.get(call.group, 0) + 1
        if call.captured:
            return  # counted, and not recorded
        ins, outs = self._shapes(call)
        done, gave_up = each.done, work.timed_out and each.running
        if work.backend == "gloo":
            state, retired = "scheduled", done
        else:
            state = "completed" if done else "started" if work.timing and each.running else ""
            state, retired = state or "scheduled", done or gave_up
        seen = each.time_ns + 400_000
        self._entries.append(
            {
                "frames": list(call.more.get("frames") or _frames(call.more.get("site"))),
                "record_id": len(self._entries),
                "pg_id": int(self._names[call.group]),
                "process_group": (self._names[call.group], self._description(call.group)),
                "thread_name": "python",
                "thread_id": str(140113090739072 + call.more.get("thread", 0)),
                "collective_seq_id": self._counts.get((call.group, False), 0),
                "p2p_seq_id": self._counts.get((call.group, True), 0),
                "op_id": self._ops[call.group] - self._hooked,
                "profiling_name": f"{self._library()}:{self._name(call)}",
                "time_created_ns": each.time_ns,
                "input_sizes": ins,
                "input_dtypes": [_DTYPES[call.dtype]] * len(ins),
                "output_sizes": outs,
                "output_dtypes": [_DTYPES[call.dtype]] * len(outs),
                "state": state,
                "time_discovered_started_ns": seen if self._started(state) else None,
                "time_discovered_completed_ns": seen if state == "completed" else None,
                "retired": retired,
                "timeout_ms": 600_000,
                "is_p2p": p2p,
            }
        )

    def _started(self, state: str) -> bool:
        return state == "started" or (state == "completed" and (self._hooked or self._work.timing))

    def _library(self) -> str:
        return "gloo" if self._work.backend == "gloo" else "nccl2" if self._hooked else "nccl"

    def _name(self, call: Post) -> str:
        if call.op in SENDS:
            own = self._work.groups[call.group].index(self._rank)
            return f"{call.op} {own}{'->' if call.op == 'send' else '<-'}{call.more['peer']}"
        return (_HOOKED if self._hooked else _NATIVE).get(call.op, call.op)

    def _shapes(self, call: Post) -> tuple[list[list[int]], list[list[int]]]:
        own, more = list(call.shape), call.more
        size = len(self._work.groups[call.group])
        if call.op in ("barrier", "coalesced"):
            return [], []
        if call.op in SENDS:
            if not self._hooked:
                return [own], [own]
            return ([own], []) if call.op == "send" else ([], [own])
        if "out_shape" in more:
            return [own], [list(more["out_shape"])]
        if call.op == "all_gather":
            return [own], [[own[0] * size, *own[1:]]]
        if call.op == "reduce_scatter":
            return [own], [[own[0] // size, *own[1:]]]
        if call.op == "all_gatherv":
            return [own], [[rows, *own[1:]] for rows in more["sizes"]]
        if call.op == "all_to_all":
            row = max(1, prod(own[1:]))
            return [[sum(more["sizes"]) * row // row, *own[1:]]], [
                [sum(more["out_sizes"]), *own[1:]]
            ]
        return [own], [own]


def _frames(site: str | None) -> Sequence[dict[str, Any]]:
    """Return the stack of a call of torch, from its line of the program."""
    place, _, name = (site or "train.py:10 step").partition(" ")
    path, _, line = place.partition(":")
    torch = f"{_LIBRARY}/torch/distributed"
    return [
        {"name": "all_reduce", "filename": f"{torch}/distributed_c10d.py", "line": 3245},
        {"name": "wrapper", "filename": f"{torch}/c10d_logger.py", "line": 83},
        {"name": name, "filename": f"/job/{path}", "line": int(line)},
        {"name": "<module>", "filename": "/job/main.py", "line": 9},
    ]

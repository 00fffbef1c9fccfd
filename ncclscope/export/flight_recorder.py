"""Dumps in the format of torch's Flight Recorder, for torch's analyzer and other readers.

A dump holds less than a ring: no reduction, root, NCCL group or CUDA graph. Names that differ from
those of a ring are spelled as torch's analyzer expects them.
"""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

from ncclscope.model import Call, Communicator, Rank, Run, State
from ncclscope.model.signature import P2P_OPS
from ncclscope.private import write_private

PREFIX = "comm_lib_trace_rank_"
"""Prefix of each file's name, before the rank, as torch writes it."""
VERSION = "2.10"
_TIMEOUT_MS = 600_000
_BACKENDS = frozenset({"nccl", "ncclx", "xccl", "gloo", "rccl", "rcclx", "mccl", "hccl"})
_OTHER_BACKEND = "gloo"
"""Name for backends that torch's analyzer does not know: it would refuse the whole dump."""
_NAMES = {
    "all_gatherv": "all_gather",
    "reduce_scatterv": "reduce_scatter",
    "all_gather": "_all_gather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_all_single",
    "gatherv": "gather",
    "scatterv": "scatter",
}
_KNOWN = frozenset({"all_reduce", "broadcast", "reduce", "gather", "scatter", "barrier"})
_DTYPES = {
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float32": "Float",
    "float64": "Double",
    "bool": "Bool",
}
_SITE = re.compile(r"(.*):(\d{1,9}) (.*)", re.S)

Dump = dict[str, Any]


def write_pickles(run: Run, directory: Path) -> None:
    """Write ``comm_lib_trace_rank_3`` for each rank."""
    _write(run, directory, "", lambda dump: pickle.dumps(dump, protocol=2))  # torch's protocol


def write_json(run: Run, directory: Path) -> None:
    """Write ``comm_lib_trace_rank_3.json`` for each rank."""
    _write(run, directory, ".json", lambda dump: json.dumps(dump, separators=(",", ":")) + "\n")


def _write(run: Run, directory: Path, suffix: str, encode: Callable[[Dump], str | bytes]) -> None:
    """Write a dump for each rank, with the rank's last heartbeat as its modification time.

    A dump has no other time, and readers need it to distinguish a hang from a running job.

    Args:
        run: The run.
        directory: Directory of the files.
        suffix: End of their names.
        encode: Return the contents of a file.
    """
    names = _group_names(run)
    for rank in run.ranks:
        file = directory / f"{PREFIX}{rank.rank}{suffix}"
        write_private(file, encode(_dump(run, rank, names)))
        if rank.last_seen_ns and rank.last_seen_ns > 0:
            os.utime(file, ns=(rank.last_seen_ns, rank.last_seen_ns))


def _group_names(run: Run) -> dict[str, int]:
    """Return a unique number per communicator, in torch's order: the whole job's first."""
    comms = [comm for comm in run.communicators.values() if not comm.creates_groups]
    everybody = tuple(range(run.expected))
    comms.sort(key=lambda comm: (comm.ranks != everybody, comm.label, comm.ranks, comm.key))
    return {comm.key: number for number, comm in enumerate(comms)}


def _dump(run: Run, rank: Rank, names: dict[str, int]) -> Dump:
    own = [key for key in rank.logs if key in names]
    first = min((call.position for call in rank.kept_calls()), default=0)
    entries: list[Dump] = []
    counts: dict[str, list[int]] = {}
    for call in rank.kept_calls():
        if call.comm not in names:
            continue
        comm = run.communicators[call.comm]
        made = counts.setdefault(call.comm, [_before(rank, call.comm), 0])
        made[1 if call.op in P2P_OPS else 0] += 1
        # Count overwritten records, so that no reader takes the dump for a complete one.
        record = len(entries) + (first if rank.lost else 0)
        entries.append(_entry(call, comm, rank, names[call.comm], made, record))
    return {
        "version": VERSION,
        "comm_lib_version": "",
        "pg_config": {str(names[key]): _group(run, key, names) for key in own},
        "pg_status": {str(names[key]): _status(rank, key) for key in own},
        "entries": entries,
        "rank": rank.rank,
    }


def _before(rank: Rank, key: str) -> int:
    log = rank.logs.get(key)
    return 0 if log is None else log.first - 1


def _group(run: Run, key: str, names: dict[str, int]) -> Dump:
    comm = run.communicators[key]
    # Readers parse it as a Python literal.
    ranks = str(list(comm.ranks or range(run.expected)))
    return {"name": str(names[key]), "desc": _desc(comm), "ranks": ranks}


def _desc(comm: Communicator) -> str:
    return comm.kind or comm.key[:12]


def _status(rank: Rank, key: str) -> Dump:
    log = rank.logs[key]
    # If the input reports completion, overwritten calls have completed.
    done = log.first - 1 if rank.details.get("tells") else 0
    for call in reversed(log.span(max(log.first, log.calls - 512), log.calls + 1)):
        if call.state is State.COMPLETED:
            done = call.seq
            break
    return {
        "last_enqueued_collective": log.calls,
        "last_started_collective": done,
        "last_completed_collective": done,
    }


def _entry(
    call: Call, comm: Communicator, rank: Rank, number: int, made: Sequence[int], record: int
) -> Dump:
    p2p = call.op in P2P_OPS
    ins, outs = _sizes(call, comm)
    dtype = [] if call.dtype is None else [_DTYPES.get(call.dtype, call.dtype)]
    done = call.state is State.COMPLETED
    backend = comm.backend.lower()
    return {
        "frames": [
            *_frames(call.site and (call.full_site or call.site)),
            *_frames(call.user_site),
        ],
        "record_id": record,
        "pg_id": number,
        "process_group": (str(number), _desc(comm)),
        "collective_seq_id": made[0] if p2p else call.seq,
        "p2p_seq_id": made[1],
        "op_id": record + 1,
        "profiling_name": f"{backend if backend in _BACKENDS else _OTHER_BACKEND}:"
        f"{_name(call, comm, rank)}",
        "time_created_ns": call.time_ns or 10**18 + call.position,
        "input_sizes": ins,
        "input_dtypes": dtype,
        "output_sizes": outs,
        "output_dtypes": dtype,
        "state": call.state.word,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": done or rank.gave_up(call),
        "timeout_ms": _TIMEOUT_MS,
        "is_p2p": p2p,
    }


def _name(call: Call, comm: Communicator, rank: Rank) -> str:
    if call.op in P2P_OPS:
        own = comm.ranks.index(rank.rank) if rank.rank in comm.ranks else 0
        peer = own if call.peer is None else call.peer
        return f"send {own}->{peer}" if call.op == "send" else f"recv {own}<-{peer}"
    if call.op in _NAMES:
        return _NAMES[call.op]
    # The analyzer refuses dumps with unknown operations.
    return call.op if call.op in _KNOWN else "coalesced"


def _sizes(call: Call, comm: Communicator) -> tuple[list[list[int]], list[list[int]]]:
    """Return the shapes of inputs and outputs; missing output shapes are derived from the op."""
    shape = list(call.shape) if call.shape is not None else None
    if shape is None:
        shape = [] if call.numel is None else [call.numel]
    ins = [shape] if call.shape is not None or call.numel is not None else []
    if call.op == "all_gatherv" and call.sizes:
        return ins, [[size, *shape[1:]] for size in call.sizes]
    if call.op == "reduce_scatterv" and call.sizes:
        # One input for each member; the output is the own part.
        return [[size, *shape[1:]] for size in call.sizes], ins
    if call.op == "recv":
        return [], ins
    if call.op == "send":
        return ins, []
    if call.out_shape is not None:
        return ins, [list(call.out_shape)]
    size = len(comm.ranks)
    if call.op == "all_gather" and shape and size:
        return ins, [[shape[0] * size, *shape[1:]]]
    if call.op == "reduce_scatter" and shape and size and shape[0] % size == 0:
        return ins, [[shape[0] // size, *shape[1:]]]
    if call.op == "reduce_scatter" and shape and size and prod(shape) % size == 0:
        return ins, [[prod(shape) // size]]
    return ins, [list(one) for one in ins]


def _frames(site: str | None) -> list[Dump]:
    found = _SITE.fullmatch(site or "")
    if found is None:
        return [{"name": site, "filename": "", "line": 0}] if site else []
    return [{"name": found[3], "filename": found[1], "line": int(found[2])}]

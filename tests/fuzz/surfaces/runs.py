"""Directories that ``diagnose`` reads: rings, dumps, traces, transfers, bundles."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.runners.dumps import pickled
from ncclscope.model.snapshot import Source
from ncclscope.readers import open_run
from ncclscope.readers.bundle import CAPTURE_FILE
from ncclscope.readers.nodes import NODE_FILE
from tests.fuzz.byte_damage import damage_bytes, damage_files
from tests.fuzz.inputs import Answer, BaseInput, Damage, Files, Input, Surface
from tests.fuzz.jobs import RANKS, export, ring_base_inputs
from tests.fuzz.oracles import verdict_of
from tests.fuzz.ring_damage import damage_part, forge_about, forge_record
from tests.fuzz.surfaces.workplace import Workplace
from tests.fuzz.value_damage import damage_json, damage_lines, damage_pickle, spell
from tests.support.dumps import Job, history
from tests.support.snapshots import DATA, elsewhere, gpus, in_collective, snapshot, worker

__all__ = ["Runs", "bundles", "dumps", "rings", "traces", "transfers"]


class Runs(Surface):
    """Inputs that are opened as a run and diagnosed."""

    def __init__(
        self, name: str, home: Path, bases: list[BaseInput], damages: Sequence[Damage]
    ) -> None:
        super().__init__(name, bases, damages)
        self._workplace = Workplace(home / name)

    def judge(self, given: Input, seed: int) -> Answer:
        with self._workplace.laid_out(given) as directory:
            return verdict_of(given, open_run(directory), seed)


def rings(home: Path) -> Runs:
    """Return rings of small jobs: damaged anywhere, in a part, or with checksums that fit."""
    damages = (*[damage_part] * 10, damage_bytes, damage_files, forge_about, forge_record)
    return Runs("rings", home, ring_base_inputs(), damages)


def traces(home: Path) -> Runs:
    """Return JSON Lines, some of them packed."""
    found = [_unsigned(one, export(one.files, "jsonl", "trace.jsonl")) for one in _jobs()]
    return Runs("jsonl", home, found, (damage_lines, damage_lines, damage_bytes, _packed))


def _packed(dice: random.Random, base: BaseInput) -> Input:
    """Pack a damaged trace, or damage a packed one."""
    lines = damage_lines(dice, base)
    (name,) = [name for name, data in lines.changed.items() if data is not None] or [""]
    if not name:
        return lines
    data = gzip.compress(lines.files[name], 1, mtime=0)
    files = {other: one for other, one in lines.files.items() if other != name}
    if dice.random() < 0.5:
        damaged = damage_bytes(dice, BaseInput("packed", {name: data}))
        data = damaged.files[name]
    return Input(base, {**files, f"{name}.gz": data}, f"packed: {lines.change}")


def dumps(home: Path) -> Runs:
    """Return Flight Recorder dumps as torch writes them, as export does, and as JSON."""
    found = [_unsigned(one, export(one.files, "flight-recorder")) for one in _jobs()]
    found += [_torch_dumps("torch healthy", healthy=True), _torch_dumps("torch hung")]
    damages = (damage_pickle, damage_pickle, damage_bytes, damage_bytes, damage_files)
    return Runs("dumps", home, found, damages)


def _torch_dumps(name: str, *, healthy: bool = False) -> BaseInput:
    job = Job(RANKS, {"1": ("tp", [0, 1])})
    history(job)
    job.post([0, 1], "_all_gather_base", group="1", outs=[[8, 2]])
    job.post([0], "send 0->1")
    job.post([1], "recv 1<-0")
    if not healthy:
        job.post([0, 1], "_reduce_scatter_base", state="started")
    frames = [{"name": "step", "filename": "/job/train.py", "line": 12}]
    for entries in job.entries:
        for entry in entries:
            entry["frames"] = frames
    values = [job.value(rank) for rank in range(RANKS)]
    files = {f"nccl_trace_rank_{rank}": pickled(value) for rank, value in enumerate(values)}
    return BaseInput(name, files, healthy)


def transfers(home: Path) -> Runs:
    """Return traces with sends, receives and transfers between jobs (KV caches)."""
    found = []
    for one in ring_base_inputs():
        if one.name in ("sends", "lost_send"):
            files = export(one.files, "jsonl", "trace.jsonl")
            found.append(_unsigned(one, {name: data + _waits() for name, data in files.items()}))
    return Runs("transfers", home, found, (damage_lines, damage_lines, damage_lines, damage_bytes))


def _waits() -> bytes:
    lines = [
        {"transfer": "kv", "id": f"request-{number}", "peer": "decode:1", "state": state}
        | {"direction": "recv" if number % 2 else "send"}
        for number in range(3)
        for state in ("waiting", "done")[: 2 - number // 2]
    ]
    return b"".join(spell(line) + b"\n" for line in lines)


def _jobs() -> list[BaseInput]:
    return [one for one in ring_base_inputs() if one.name not in ("wrapped", "other_graph")]


def _unsigned(one: BaseInput, files: Files) -> BaseInput:
    """Return a job in a format without checksums: nothing shows that a letter was changed."""
    return BaseInput(one.name, files, one.healthy)


# --- bundles --------------------------------------------------------------------------------------


def bundles(home: Path) -> Runs:
    """Return what ``attach -o`` and ``collect`` leave: stacks, RAS, GPUs, rings, dumps, nodes."""
    jobs = {one.name: one for one in ring_base_inputs()}
    waiting = jobs["waiting"]
    stacks = spell(_seen().to_dict())
    shrunk = {f"{name}.gz": gzip.compress(data, 1, mtime=0) for name, data in waiting.files.items()}
    found = [
        BaseInput("stacks", {CAPTURE_FILE: stacks}, False),
        BaseInput("devices", {CAPTURE_FILE: spell(_devices())}, False),
        BaseInput("ringed", {CAPTURE_FILE: stacks, **_below("rings", waiting.files)}, False),
        BaseInput("collected", _collected(waiting.files), False),
        BaseInput("recorder", _recorder(stacks), False),
        BaseInput("packed", {CAPTURE_FILE: stacks, **_below("rings", shrunk)}, False),
    ]
    return Runs("bundles", home, found, (damage_json, damage_json, damage_json, _damage_any))


def _damage_any(dice: random.Random, base: BaseInput) -> Input:
    rings = [name for name in base.files if name.endswith(".ring")]
    return dice.choice([damage_bytes, damage_files, damage_part if rings else damage_bytes])(
        dice, base
    )


def _seen() -> Any:
    """Return a capture of ranks of which one is somewhere else."""
    waits, away = in_collective("all_gather", 15), elsewhere(40)
    return snapshot(
        [worker(rank, away if rank == 2 else waits, world_size=RANKS) for rank in range(RANKS)],
        gpus=gpus(100, 100, 0),
        sources=(Source("stacks", True, "read"), Source("gpu", True, "read")),
        versions={"torch": "2.13.0"},
    )


def _devices() -> Any:
    """Return a capture with answers of NCCL's RAS, as recorded on four GPUs."""
    document = json.loads((DATA / "h200_mismatch.json").read_bytes())
    for one in document["workers"]:
        one["stacks"] = one["stacks"][:2]
        for stacks in one["stacks"]:
            stacks["threads"] = stacks["threads"][:2]
    return document


def _below(folder: str, files: Files) -> Files:
    return {f"{folder}/{name}": data for name, data in files.items()}


def _collected(files: Files) -> Files:
    """Return two nodes' folders, each with the node's description of its rings."""
    found: dict[str, bytes] = {}
    for node, names in (("a", ["rank-0.ring", "rank-1.ring"]), ("b", ["rank-2.ring"])):
        about = {f"files/{name}": {"alive": False, "beats": False} for name in names}
        document = {"ncclscope_node": 1, "rings": about, "notes": ["one process was not read"]}
        found[f"{node}/{NODE_FILE}"] = spell(document)
        found |= {f"{node}/files/{name}": files[name] for name in names}
    return found


def _recorder(stacks: bytes) -> Files:
    recorded = _torch_dumps("").files
    return {CAPTURE_FILE: stacks, **_below("flight_recorder", recorded)}

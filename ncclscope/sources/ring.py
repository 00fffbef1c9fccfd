"""Rings -> ranks."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ncclscope.model import Call, Communicator, Rank, State, Step
from ncclscope.ring import layout
from ncclscope.ring.reader import CHUNK, RECORD_DTYPE, Records, RingFile, bracket, hash_before
from ncclscope.signature import BASE, VECTOR_OPS, sign
from ncclscope.tracing import identity

__all__ = ["RingLog", "read_ring"]


def read_ring(path: Path) -> Rank:
    """Reads what a ring says of its process; its calls are read when they are asked for.

    Raises:
        DamagedFileError: The file is no ring or contradicts itself.
        OSError: It cannot be read.
    """
    ring = RingFile(path)
    about = ring.about
    communicators = _communicators(ring)
    logs = {
        communicator.key: RingLog(ring, number, communicator)
        for number, communicator in communicators.items()
        if ring.states.get(number) is not None
    }
    host, pid = str(about.get("host", "")), _integer(about.get("pid"), 0)
    labels = about.get("labels")
    return Rank(
        rank=_integer(about.get("rank"), -1),
        world_size=max(_integer(about.get("world_size"), 0), 0),
        host=host,
        pid=pid,
        gpu=about["gpu"] if isinstance(about.get("gpu"), int) else None,
        labels={str(k): str(v) for k, v in labels.items()} if isinstance(labels, dict) else {},
        logs=logs,
        p2p=_LazyP2p(ring, communicators),
        records=ring.head - ring.oldest,
        lost=ring.oldest,
        started_ns=_integer(about.get("started_ns"), 0) or None,
        last_seen_ns=ring.heartbeat_ns or None,
        exited=ring.exited_ns > 0,
        alive=_alive(about, host, pid),
        steps=_LazySteps(ring),
        source=str(path),
        details=about,
    )


class RingLog:
    """A :class:`~ncclscope.model.CallLog` that reads only what is asked for."""

    anchored = True
    rooted = True

    def __init__(self, ring: RingFile, number: int, communicator: Communicator) -> None:
        self.communicator = communicator
        self._ring = ring
        self._number = number
        self._state = ring.states[number]
        self._seqs, self._positions, self._hashes = ring.marks(number)
        self._blocks: dict[int, Records] = {}
        self._first: int | None = None

    @property
    def calls(self) -> int:
        """Calls made, kept or not."""
        return self._state.seq

    @property
    def first(self) -> int:
        """Sequence number of the first call that is kept; ``calls + 1`` when none is."""
        if self._first is None:
            self._first = 1 if self._ring.oldest == 0 else self._find_first()
        return self._first

    def fingerprint(self, seq: int) -> int:
        """Running hash after ``seq`` calls."""
        if seq == self._state.seq:
            return self._state.hash
        if seq == 0:
            return 0
        place, _ = bracket(self._seqs, seq)
        if place >= 0 and self._seqs[place] == seq:
            return self._hashes[place]
        if seq < self.first:
            record = self._record(self.first)
            call = _decode(self._ring, record, self.communicator.key)
            return hash_before(int(record["hash"]), call.signature)
        return int(self._record(seq)["hash"])

    def call(self, seq: int) -> Call:
        """The call number ``seq``."""
        return self.span(seq, seq + 1)[0]

    def span(self, start: int, stop: int) -> Sequence[Call]:
        """Calls ``start`` to ``stop - 1``, as far as they are kept."""
        key = self.communicator.key
        calls = [_decode(self._ring, record, key) for record in self._records(start, stop)]
        for place, call in enumerate(calls):
            if call.sizes is None and call.op in VECTOR_OPS:
                # The list was overwritten, but the hash remembers what was signed.
                signed = self.signatures(call.seq, call.seq + 1)[0]
                calls[place] = replace(call, signature=signed)
        return calls

    def signatures(self, start: int, stop: int) -> Sequence[int]:
        """Signatures of calls ``start`` to ``stop - 1``, from the hashes at both their ends."""
        records = self._records(start, stop)
        if not len(records):
            return []
        hashes = records["hash"]
        before = np.empty_like(hashes)
        before[1:] = hashes[:-1]
        before[0] = self.fingerprint(int(records["seq"][0]) - 1)
        signatures: list[int] = (hashes - before * np.uint64(BASE)).tolist()
        return signatures

    def _find_first(self) -> int:
        ring = self._ring
        for start in range(ring.oldest, ring.head, CHUNK):
            mine = self._mine(ring.window(start, start + CHUNK))
            if len(mine):
                return int(mine["seq"][0])
        return self.calls + 1

    def _record(self, seq: int) -> Any:
        """The raw record of a call; KeyError when it is not kept."""
        records = self._block(seq)
        place = int(np.searchsorted(records["seq"], seq))
        if place >= len(records) or records["seq"][place] != seq:
            raise KeyError(f"call {seq} on {self.communicator.label} is not kept")
        return records[place]

    def _records(self, start: int, stop: int) -> Records:
        start, stop = max(start, self.first), min(stop, self.calls + 1)
        parts = []
        seq = start
        while seq < stop:
            block = self._block(seq)
            low, high = np.searchsorted(block["seq"], [seq, stop])
            if low >= high:
                break
            parts.append(block[low:high])
            seq = int(block["seq"][high - 1]) + 1
        if not parts:
            return np.empty(0, RECORD_DTYPE)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _block(self, seq: int) -> Records:
        """This communicator's records between the two marks around a call."""
        before, after = bracket(self._seqs, seq)
        block = self._blocks.get(before)
        if block is None:
            start = self._positions[before] if before >= 0 else self._ring.oldest
            stop = self._positions[after] if after < len(self._positions) else self._ring.head
            block = self._mine(self._ring.window(start, stop))
            if len(self._blocks) > 8:
                self._blocks.clear()
            self._blocks[before] = block
        return block

    def _mine(self, records: Records) -> Records:
        kinds = layout.FIXED_P2P | layout.FIXED_STEP
        mine: Records = records[(records["comm"] == self._number) & (records["fixed"] & kinds == 0)]
        # Two threads may have taken their numbers in one order and their slots in the other.
        if len(mine) > 1 and np.any(mine["seq"][1:] < mine["seq"][:-1]):
            mine = np.sort(mine, order="seq")
        return mine


class _LazyP2p(Mapping[str, Sequence[Call]]):
    """Point-to-point calls per communicator, read when one is asked for."""

    def __init__(self, ring: RingFile, communicators: Mapping[int, Communicator]) -> None:
        self._ring = ring
        self._numbers = {
            communicator.key: number
            for number, communicator in communicators.items()
            if number in ring.states and ring.states[number].p2p
        }
        self._calls: dict[str, Sequence[Call]] = {}

    def __getitem__(self, key: str) -> Sequence[Call]:
        if key not in self._calls:
            number = self._numbers[key]
            found = []
            for start in range(self._ring.oldest, self._ring.head, CHUNK):
                window = self._ring.window(start, start + CHUNK)
                mine = window[
                    (window["comm"] == number) & (window["fixed"] & layout.FIXED_P2P != 0)
                ]
                found += [_decode(self._ring, record, key) for record in mine]
            self._calls[key] = found
        return self._calls[key]

    def __iter__(self) -> Any:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


class _LazySteps(Sequence[Step]):
    """Steps of the engine, read when they are asked for."""

    def __init__(self, ring: RingFile) -> None:
        self._ring = ring
        self._steps: list[Step] | None = None

    def _read(self) -> list[Step]:
        if self._steps is None:
            self._steps = []
            for start in range(self._ring.oldest, self._ring.head, CHUNK):
                window = self._ring.window(start, start + CHUNK)
                for record in window[window["fixed"] & layout.FIXED_STEP != 0]:
                    tokens = int(record["numel"])
                    self._steps.append(
                        Step(
                            number=int(record["seq"]),
                            position=int(record["begin"]) - 1,
                            tokens=tokens - 1 if tokens else None,
                            dummy=bool(record["fixed"] & layout.FIXED_DUMMY),
                        )
                    )
        return self._steps

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]

    def __len__(self) -> int:
        return len(self._read())


def _decode(ring: RingFile, record: Any, key: str) -> Call:
    fixed = int(record["fixed"])
    p2p = bool(fixed & layout.FIXED_P2P)
    op = ring.text(layout.KIND_OP, int(record["op"])) or "?"
    dtype = ring.text(layout.KIND_DTYPE, int(record["dtype"]))
    redop = ring.text(layout.KIND_REDOP, int(record["redop"]))
    ndim = int(record["ndim"])
    shape = None if ndim > 4 else tuple(record["shape"][:ndim].tolist())
    root = int(record["root"])
    sizes = ring.sizes(int(record["sizes"])) if record["sizes"] else None
    out = ring.text(layout.KIND_SHAPE, int(record["out"]))
    out_shape = None
    if out is not None:
        out_shape = tuple(int(part) for part in out.split(",") if part.isdecimal())
    numel = int(record["numel"])
    return Call(
        op=op,
        comm=key,
        seq=int(record["seq"]),
        position=int(record["begin"]) - 1,
        dtype=dtype,
        redop=redop,
        root=None if p2p or root < 0 else root,
        peer=root if p2p and root >= 0 else None,
        numel=numel if numel or shape is None else prod(shape),
        shape=shape,
        sizes=sizes,
        out_shape=out_shape,
        site=ring.text(layout.KIND_SITE, int(record["site"])),
        time_ns=int(record["time"]),
        state=State(min(int(record["state"]), State.COMPLETED)),
        captured=bool(int(record["flags"]) & layout.FLAG_CAPTURED),
        group=int(record["group"]) or None,
        graph=int(record["graph"]) or None,
        signature=0
        if p2p
        else sign(
            op,
            dtype=dtype,
            redop=redop,
            root=None if root < 0 else root,
            numel=numel if numel or shape is not None else None,
            shape=shape,
            sizes=sizes,
            out_shape=out_shape,
        ),
    )


def _communicators(ring: RingFile) -> dict[int, Communicator]:
    """By their number in the file; what cannot be understood is left out."""
    found: dict[int, dict[str, Any]] = {}
    for number, text in enumerate(ring.texts.get(layout.KIND_COMM, []), 1):
        about = _object(text)
        if isinstance(about.get("key"), str):
            found[number] = about
    for text in ring.texts.get(layout.KIND_COMM_UPDATE, []):
        changed = _object(text)
        number = changed.pop("comm", None)
        if number in found:
            found[number].update(changed)
    return {
        number: Communicator(
            key=about["key"],
            label=str(about.get("label") or ""),
            ranks=tuple(rank for rank in about.get("ranks") or () if isinstance(rank, int)),
            backend=str(about.get("backend") or ""),
        )
        for number, about in found.items()
    }


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _integer(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _alive(about: Mapping[str, Any], host: str, pid: int) -> bool | None:
    """Whether the process runs, where this machine can tell."""
    if not about.get("boot_id") or host != socket.gethostname():
        return None
    if about["boot_id"] != identity.describe_process()["boot_id"]:
        return False
    ticks = identity.start_ticks(pid)
    return bool(ticks) and ticks == about.get("start_ticks")

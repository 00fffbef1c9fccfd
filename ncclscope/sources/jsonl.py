"""Trace JSONL, version 1, as the contract describes it: read and written."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import IO, Any

from ncclscope.errors import DamagedFileError
from ncclscope.model import Call, Communicator, Rank, State, Step
from ncclscope.signature import P2P_OPS, VECTOR_OPS, canonical_op, sign
from ncclscope.sources.memory import ListLog

__all__ = ["VERSION", "is_trace", "read_trace", "write_trace"]

VERSION = 1
MAX_LINE = 1 << 20
"""Longest line that is read, in bytes: a foreign file must not fill the memory."""

_STATES = {state.word: state for state in State}


def is_trace(path: Path) -> bool:
    """Whether a file's name is one that a trace may have."""
    return path.name.endswith((".jsonl", ".jsonl.gz"))


def read_trace(path: Path) -> Rank:
    """Reads one process's trace.

    Raises:
        DamagedFileError: The header is missing or of another version, or a line is no JSON.
        OSError: The file cannot be read.
    """
    lines = _lines(path)
    header = next(lines, None)
    if not isinstance(header, dict) or "ncclscope_trace" not in header:
        raise DamagedFileError(
            f"{path} is no trace", 'its first line should be {"ncclscope_trace": 1, ...}'
        )
    if header["ncclscope_trace"] != VERSION:
        raise DamagedFileError(
            f"{path} is a trace of version {header['ncclscope_trace']}",
            f"this ncclscope reads version {VERSION}",
        )
    communicators: dict[str, Communicator] = {}
    calls: dict[str, list[Call]] = {}
    p2p: dict[str, list[Call]] = {}
    steps: list[Step] = []
    numbered = False
    position = 0
    for line in lines:
        if "call" in line and "comm" in line:
            call = _call(path, line, position)
            position += 1
            numbered = numbered or line.get("seq") is not None
            target = p2p if call.op in P2P_OPS else calls
            target.setdefault(call.comm, []).append(call)
        elif "comm" in line:
            communicators[str(line["comm"])] = _communicator(line)
        elif "step" in line:
            steps.append(
                Step(
                    number=_integer(line["step"]) or 0,
                    position=position,
                    tokens=_integer(line.get("tokens")),
                    dummy=bool(line.get("dummy")),
                )
            )
    window = bool(header.get("window"))
    logs = {}
    lost = 0
    for key in {**communicators, **calls}:
        communicator = communicators.get(key) or Communicator(key)
        own = _renumber(calls.get(key, []), p2p.get(key, []))
        logs[key] = ListLog(communicator, own, anchored=not window)
        lost += logs[key].first - 1
    return Rank(
        rank=-1 if (rank := _integer(header.get("rank"))) is None else rank,
        world_size=_integer(header.get("world_size")) or 0,
        host=str(header.get("host") or ""),
        pid=_integer(header.get("pid")) or 0,
        gpu=_integer(header.get("gpu")),
        labels=_labels(header.get("labels")),
        logs=logs,
        p2p=p2p,
        records=position,
        lost=lost,
        window=window,
        last_seen_ns=_integer(header.get("last_seen_ns")),
        started_ns=_integer(header.get("started_ns")),
        exited=bool(header.get("exited")),
        steps=steps,
        source=str(path),
        details={"format": "jsonl", "numbered": numbered},
    )


def write_trace(rank: Rank, path: str | os.PathLike[str], *, last: int | None = None) -> None:
    """Writes what one rank recorded.

    Args:
        rank: What was read from a ring or another source.
        path: ``*.jsonl`` or ``*.jsonl.gz``.
        last: Write only the last so many calls, without their numbers, as a bounded buffer
            in the program would have kept them. The file then says that it is a window.
    """
    calls = [call for log in rank.logs.values() for call in log.span(log.first, log.calls + 1)]
    calls += [call for sent in rank.p2p.values() for call in sent]
    calls.sort(key=lambda call: call.position)
    steps = list(rank.steps)
    if last is not None:
        calls = calls[-last:]
        oldest = calls[0].position if calls else 0
        steps = [step for step in steps if step.position >= oldest]
    with _open(Path(path), "wt") as file:
        header = {
            "ncclscope_trace": VERSION,
            "rank": rank.rank,
            "world_size": rank.world_size,
            "host": rank.host,
            "pid": rank.pid,
            "gpu": rank.gpu,
            "labels": dict(rank.labels),
            "started_ns": rank.started_ns,
            "last_seen_ns": rank.last_seen_ns,
            "exited": rank.exited,
        }
        if last is not None:
            header["window"] = True
        _write_line(file, header)
        for log in rank.logs.values():
            about = log.communicator.to_dict()
            about["comm"] = about.pop("key")
            _write_line(file, about)
        for call in calls:
            while steps and steps[0].position <= call.position:
                step = steps.pop(0)
                _write_line(file, {"step": step.number, "tokens": step.tokens, "dummy": step.dummy})
            _write_line(file, _line(call, numbered=last is None))


def _line(call: Call, *, numbered: bool) -> dict[str, Any]:
    line: dict[str, Any] = {"call": call.op, "comm": call.comm}
    if numbered:
        line["seq"] = call.seq
    line |= {
        "t_ns": call.time_ns,
        "shape": call.shape,
        "dtype": call.dtype,
        "redop": call.redop,
        "root": call.root,
        "peer": call.peer,
        "sizes": call.sizes,
        "out_shape": call.out_shape,
        "state": call.state.word,
        "captured": call.captured,
        "site": call.site,
    }
    if call.shape is None and call.numel is not None:
        line["numel"] = call.numel
    if call.group is not None:
        line["group"] = call.group
    if call.op in VECTOR_OPS and call.sizes is None:
        line["signature"] = call.signature  # the list is gone, what was signed of it is not
    return line


def _write_line(file: IO[str], value: Mapping[str, Any]) -> None:
    file.write(json.dumps(value, separators=(",", ":")) + "\n")


def _open(path: Path, mode: str) -> IO[Any]:
    opener: Callable[..., IO[Any]] = gzip.open if path.suffix == ".gz" else open
    return opener(path, mode, encoding="utf-8", errors="replace")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the objects of a file; a torn last line is left out."""
    with _open(path, "rt") as file:
        number = 0
        try:
            while text := file.readline(MAX_LINE):
                number += 1
                if not text.endswith("\n") and len(text) >= MAX_LINE:
                    raise DamagedFileError(f"{path}:{number} is longer than {MAX_LINE} bytes")
                if not text.strip():
                    continue
                try:
                    value = json.loads(text)
                except ValueError:
                    if not text.endswith("\n") or not file.read(1):
                        return
                    raise DamagedFileError(f"{path}:{number} is not JSON") from None
                if isinstance(value, dict):
                    yield value
        except (EOFError, gzip.BadGzipFile) as error:
            if number == 0:
                raise DamagedFileError(f"{path} cannot be unpacked: {error}") from None


def _call(path: Path, line: Mapping[str, Any], position: int) -> Call:
    op = canonical_op(str(line["call"]))
    dtype = line.get("dtype")
    dtype = str(dtype).removeprefix("torch.").lower() if dtype is not None else None
    redop = line.get("redop")
    redop = str(redop).rpartition(".")[2].lower() if redop is not None else None
    shape = _integers(line.get("shape"))
    sizes = _integers(line.get("sizes"))
    out_shape = _integers(line.get("out_shape"))
    root = _integer(line.get("root"))
    numel = _integer(line.get("numel"))
    if numel is None and shape is not None:
        numel = prod(shape)
    seq = _integer(line.get("seq"))
    site = line.get("site")
    return Call(
        op=op,
        comm=str(line["comm"]),
        seq=0 if seq is None else seq,
        position=position,
        dtype=dtype,
        redop=redop,
        root=root,
        peer=_integer(line.get("peer")),
        numel=numel,
        shape=shape,
        sizes=sizes,
        out_shape=out_shape,
        site=None if site is None else str(site),
        time_ns=_integer(line.get("t_ns")),
        state=_STATES.get(str(line.get("state")), State.SCHEDULED),
        captured=bool(line.get("captured")),
        group=_integer(line.get("group")),
        signature=_integer(line.get("signature"))
        or sign(
            op,
            dtype=dtype,
            redop=redop,
            root=root,
            numel=numel,
            shape=shape,
            sizes=sizes,
            out_shape=out_shape,
        ),
    )


def _renumber(calls: Sequence[Call], p2p: Sequence[Call]) -> list[Call]:
    """Gives collectives consecutive numbers.

    Numbers in the file are kept where they are consecutive. Where sends and receives were
    counted together with them, they are counted out again; where lines are missing in the
    middle, what follows the last gap is kept.
    """
    between = sorted(call.seq for call in p2p if call.seq)
    if between and {call.seq for call in calls} & set(between):
        between = []  # they had numbers of their own
    numbered: list[Call] = []
    for order, call in enumerate(calls, 1):
        seq = call.seq
        if seq:
            seq -= sum(1 for other in between if other < seq) if between else 0
        else:
            seq = numbered[-1].seq + 1 if numbered else order
        if numbered and seq != numbered[-1].seq + 1:
            numbered = []
        numbered.append(_with_seq(call, seq))
    return numbered


def _with_seq(call: Call, seq: int) -> Call:
    if call.seq == seq:
        return call
    fields = {name: getattr(call, name) for name in Call.__dataclass_fields__}
    return Call(**{**fields, "seq": seq})


def _communicator(line: Mapping[str, Any]) -> Communicator:
    return Communicator(
        key=str(line["comm"]),
        label=str(line.get("label") or ""),
        ranks=_integers(line.get("ranks")) or (),
        backend=str(line.get("backend") or ""),
    )


def _labels(value: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else {}


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _integers(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    return tuple(item for item in value if isinstance(item, int))

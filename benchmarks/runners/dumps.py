"""Flight Recorder dumps of a large job, for ncclscope and for torch's own analyzer.

``python -m benchmarks.runners.dumps [--ranks 64 256] [--entries 2000] [--no-torch]`` prints the
processor time and the memory of each, measured in turns on the same files.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["job_dump", "pickled", "write_job"]

OPS = ("all_reduce", "_all_gather_base", "_reduce_scatter_base")
TURNS = (0, 1, 1, 2, 1, 1, 2, 1)
"""Which group each call goes to: the world, tensor parallel, data parallel."""
SIZE = 8
PREFIX = "nccl_trace_rank_"


def pickled(value: Any) -> bytes:
    """Pickle as torch does: protocol 2, with texts and stack frames in the memo alone."""
    out = bytearray(b"\x80\x02")
    memo: dict[Any, int] = {}

    def numbered(code: bytes, wide: bytes, number: int) -> bytes:
        return code + bytes([number]) if number < 256 else wide + struct.pack("<I", number)

    def put(item: Any) -> None:
        key = id(item) if isinstance(item, dict) else item
        if isinstance(item, str | dict) and key in memo:
            out.extend(numbered(b"h", b"j", memo[key]))
        elif isinstance(item, str):
            data = item.encode()
            memo[item] = len(memo)
            out.extend(b"X" + struct.pack("<I", len(data)) + data)
            out.extend(numbered(b"q", b"r", memo[item]))
        elif item is None:
            out.extend(b"N")
        elif isinstance(item, bool):
            out.extend(b"\x88" if item else b"\x89")
        elif isinstance(item, int):
            put_number(item)
        elif isinstance(item, float):
            out.extend(b"G" + struct.pack(">d", item))
        elif isinstance(item, list):
            out.extend(b"](")
            for part in item:
                put(part)
            out.extend(b"e")
        elif isinstance(item, tuple):
            for part in item:
                put(part)
            out.extend(b"\x86")
        else:
            out.extend(b"}(")
            for name, part in item.items():
                put(name)
                put(part)
            out.extend(b"u")
            if "line" in item:
                memo[key] = len(memo)
                out.extend(numbered(b"q", b"r", memo[key]))

    def put_number(item: int) -> None:
        if 0 <= item < 1 << 8:
            out.extend(b"K" + bytes([item]))
        elif 0 <= item < 1 << 16:
            out.extend(b"M" + struct.pack("<H", item))
        elif -(1 << 31) <= item < 1 << 31:
            out.extend(b"J" + struct.pack("<i", item))
        else:
            out.extend(b"\x8a\x08" + struct.pack("<q", item))

    put(value)
    return bytes(out + b".")


def write_job(directory: Path, ranks: int, entries: int, wrong: int | None = None) -> None:
    """Write the dumps of a job.

    Args:
        directory: Where to.
        ranks: Of the job, a multiple of eight.
        entries: Calls of each.
        wrong: Call at which rank 5 posts another operation.
    """
    directory.mkdir(parents=True)
    for rank in range(ranks):
        value = job_dump(rank, ranks, entries, wrong)
        (directory / f"{PREFIX}{rank}").write_bytes(pickled(value))


def job_dump(rank: int, ranks: int, entries: int, wrong: int | None) -> dict[str, Any]:
    """Return the dump of one rank of such a job; see :func:`write_job`."""
    groups = {
        "0": ("default_pg", list(range(ranks))),
        str(1 + rank // SIZE): ("tp", [rank // SIZE * SIZE + n for n in range(SIZE)]),
        str(1 + ranks + rank % SIZE): ("dp", list(range(rank % SIZE, ranks, SIZE))),
    }
    made = dict.fromkeys(groups, 0)
    names = list(groups)
    calls = []
    stacks = [_stack(line) for line in range(40)]
    for number in range(entries):
        place = TURNS[number % len(TURNS)]
        made[names[place]] += 1
        odd = rank == 5 and number == wrong
        group = names[place], groups[names[place]][0]
        calls.append(
            _entry(number, place, group, made[names[place]], len(groups[group[0]][1]))
            | ({"profiling_name": "nccl:broadcast"} if odd else {})
            | ({} if number < entries - 5 else {"state": "scheduled", "retired": False})
            | {"frames": stacks[number % 40]}
        )
    return {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": desc, "ranks": str(members)}
            for name, (desc, members) in groups.items()
        },
        "comm_lib_version": "2.27.3",
        "pg_status": {},
        "entries": calls,
    }


def _stack(line: int) -> list[dict[str, Any]]:
    torch = "/lib/python3.11/site-packages/torch/distributed"
    return [
        {"name": name, "filename": path, "line": number}
        for name, path, number in (
            ("all_reduce", f"{torch}/distributed_c10d.py", 3145),
            ("wrapper", f"{torch}/c10d_logger.py", 83),
            ("forward", "/job/layer.py", 100 + line),
            ("step", "/job/train.py", 55),
            ("main", "/job/train.py", 99),
        )
    ]


def _entry(
    number: int, place: int, group: tuple[str, str], seq: int, members: int
) -> dict[str, Any]:
    shape = [4096, number % 7 + 1, 512]
    created = 1_795_000_000_000_000_000 + number * 1_000_000
    rows = (shape[0], shape[0] * members, shape[0] // members)[number % 3]
    return {
        "frames": None,
        "record_id": number,
        "pg_id": place,
        "process_group": group,
        "thread_name": "python",
        "thread_id": "140063657233280",
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"nccl:{OPS[number % 3]}",
        "time_created_ns": created,
        "input_sizes": [shape],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[rows, *shape[1:]]],
        "output_dtypes": ["BFloat16"],
        "state": "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": created + 500_000,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }


def cost(command: list[str]) -> tuple[float, int]:
    """Return the processor seconds of a command, and the most memory it had, in bytes."""
    with open(os.devnull, "wb") as nowhere:
        child = subprocess.Popen(command, stdout=nowhere, stderr=nowhere)
        _, _, used = os.wait4(child.pid, 0)
        child.returncode = 0
    return used.ru_utime + used.ru_stime, used.ru_maxrss << 10


def main() -> None:
    """Measure what was asked for, in a directory that is removed afterwards."""
    parser = argparse.ArgumentParser(prog="benchmarks.runners.dumps", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--no-torch", action="store_true", help="ncclscope alone")
    arguments = parser.parse_args()
    tools = {"ncclscope": [sys.executable, "-m", "ncclscope", "diagnose", "--json"]}
    if not arguments.no_torch and importlib.util.find_spec("torch"):
        module = "torch.distributed.flight_recorder.fr_trace"
        tools["torchfrtrace"] = [sys.executable, "-m", module, "-p", PREFIX]
    with tempfile.TemporaryDirectory(prefix="ncclscope-bench-") as name:
        for ranks in arguments.ranks:
            directory = Path(name, str(ranks))
            write_job(directory, ranks, arguments.entries, wrong=arguments.entries - 3)
            for tool, command in tools.items():
                seconds, memory = cost([*command, str(directory)])
                print(
                    f"{ranks:5} ranks x {arguments.entries}  {tool:13} {seconds:7.2f} s "
                    f"{memory >> 20:6} MB",
                    flush=True,
                )


if __name__ == "__main__":
    main()

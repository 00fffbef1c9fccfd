"""A program that records in several threads until it is killed, again and again.

One *round* is a forked child whose threads record calls and acknowledge each of them through
a pipe as soon as the tracer has returned. The parent reads the acknowledgements, and after
so many of them, and a little more time, sends SIGKILL. What had been acknowledged goes to a
JSON file, for the test to compare with what the ring holds.

What a thread posts is a function of the thread and its own counter, so that whoever reads a
record knows whether it was ever meant to be posted.

    python crash_writer.py PLAN.json RESULT.json
"""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ncclscope import Tracer

THREADS = int(os.environ.get("NCCLSCOPE_TEST_THREADS", "3"))
COMMS = ("tp", "dp", "ep")
ACKNOWLEDGEMENT = struct.Struct("<II")  # thread, counter: far below PIPE_BUF, so never torn
DTYPES = ("float32", "bfloat16", "int32")


@dataclass(frozen=True)
class Round:
    """One life of the writer.

    Attributes:
        directory: Where its ring goes.
        capacity: Of the ring.
        after: Acknowledgements to wait for before the kill.
        spin_ns: Time to let pass between them and the kill.
        switch: Interval after which the interpreter hands over to another thread.
    """

    directory: str
    capacity: int
    after: int
    spin_ns: int
    switch: float


def plan(directory: Path, *, rounds: int, capacity: int, longest: int, seed: int) -> list[Round]:
    """Return rounds that end at moments drawn from a seeded generator."""
    draw = random.Random(seed)
    return [
        Round(
            directory=str(directory / str(number)),
            capacity=capacity,
            after=draw.randrange(longest),
            spin_ns=draw.randrange(300_000),
            switch=draw.choice([1e-6, 2e-5, 5e-3]),
        )
        for number in range(rounds)
    ]


def content(thread: int, counter: int) -> tuple[str, str, dict[str, Any]]:
    """Return communicator, operation and parameters of a thread's call, counted from 1."""
    comm = COMMS[(thread + counter) % len(COMMS)]
    fields: dict[str, Any] = {
        "shape": (thread + 1, counter),
        "dtype": DTYPES[counter % len(DTYPES)],
        "site": f"thread {thread}",
    }
    match counter % 11:
        case 3:
            return comm, "send", fields | {"peer": thread}
        case 5:
            return comm, "all_gatherv", fields | {"sizes": (thread, counter, 1)}
        case 7:
            return comm, "broadcast", fields | {"root": thread, "out_shape": (counter, thread)}
        case _:
            return comm, "all_reduce", fields | {"redop": "sum"}


def write(life: Round, pipe: int) -> None:
    """Record for ever, from several threads."""
    tracer = Tracer(life.directory, rank=0, world_size=1, capacity=life.capacity, details={})
    comms = {name: tracer.communicator(name, f"{name}:0", [0], "none") for name in COMMS}
    sys.setswitchinterval(life.switch)

    def work(thread: int) -> None:
        counter = 0
        while True:
            counter += 1
            name, op, fields = content(thread, counter)
            tracer.record(comms[name], op, **fields)
            os.write(pipe, ACKNOWLEDGEMENT.pack(thread, counter))

    for thread in range(1, THREADS):
        threading.Thread(target=work, args=(thread,), daemon=True).start()
    work(0)


def live(life: Round) -> list[int]:
    """Run one round and return the last acknowledged counter of each thread."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            write(life, writing)
        finally:
            os._exit(70)  # it does not come here unless something went wrong
    os.close(writing)
    acknowledged = [0] * THREADS
    rest = b""
    try:
        received = 0
        while received < life.after * ACKNOWLEDGEMENT.size:
            data = os.read(reading, 1 << 16)
            if not data:
                break
            received += len(data)
            rest = _count(rest + data, acknowledged)
        until = time.perf_counter_ns() + life.spin_ns
        while time.perf_counter_ns() < until:
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    while data := os.read(reading, 1 << 16):
        rest = _count(rest + data, acknowledged)
    os.close(reading)
    if not os.WIFSIGNALED(status) or rest:
        raise SystemExit(f"the writer ended by itself: status {status}")
    return acknowledged


def _count(data: bytes, acknowledged: list[int]) -> bytes:
    whole = len(data) // ACKNOWLEDGEMENT.size * ACKNOWLEDGEMENT.size
    for thread, counter in ACKNOWLEDGEMENT.iter_unpack(data[:whole]):
        if counter != acknowledged[thread] + 1:
            raise SystemExit(f"thread {thread} acknowledged {counter} out of turn")
        acknowledged[thread] = counter
    return data[whole:]


def run(rounds: list[Round], folder: Path) -> list[list[int]]:
    """Run rounds in a process of its own, which is small and has one thread."""
    import subprocess

    todo, done = folder / "plan.json", folder / "result.json"
    todo.write_text(json.dumps([asdict(life) for life in rounds]))
    subprocess.run([sys.executable, __file__, todo, done], check=True, timeout=60 + 5 * len(rounds))
    result: list[list[int]] = json.loads(done.read_text())
    return result


def main() -> None:
    """Run the rounds of a plan."""
    rounds = [Round(**fields) for fields in json.loads(Path(sys.argv[1]).read_text())]
    Path(sys.argv[2]).write_text(json.dumps([live(life) for life in rounds]))


if __name__ == "__main__":
    main()

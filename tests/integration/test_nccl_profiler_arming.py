"""A dormant plugin records nothing until NCCL is asked for its events, through its RAS."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ncclscope
from ncclscope.attach.arming import MASK, set_mask
from ncclscope.errors import InputError
from tests.support import fork_server
from tests.support.nccl_programs import Built, Program, call, comm

DORMANT = {"NCCLSCOPE_ARM": "1"}


@contextlib.contextmanager
def _ras(answers: dict[str, str], informed: Callable[[int], None]) -> Iterator[tuple[str, int]]:
    """Serve RAS on a free port; call `informed` with each mask."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, connection.makefile("rw", encoding="ascii") as lines:
                for line in lines:
                    command = line.strip()
                    if command.startswith("CONTROL PROFILER_MASK") and answers.get("mask") == "OK":
                        informed(int(command.rpartition(" ")[2], 0))
                    word = "mask" if command.startswith("CONTROL") else command
                    if word not in answers:
                        break
                    lines.write(f"{answers[word]}\n")
                    lines.flush()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield server.getsockname()
    server.close()


GOOD = {"CLIENT PROTOCOL 2": "SERVER PROTOCOL 2", "mask": "OK"}


def test_nothing_is_recorded_before_it_is_armed(nccl: Built, rings: Path) -> None:
    program = Program(nccl, {**DORMANT, "NCCLSCOPE_DIR": rings})
    assert program.ask(f"open {nccl.plugin} 7", comm(0), call(), call()) == [0, 0, 0, 0]
    assert [*rings.glob("*")] == []
    program.ask(f"mask {MASK}", call("AllGather"), comm(0, at=1, hash=2), call(at=1))
    program.end()
    (rank,) = ncclscope.open_run(rings).ranks
    early, late = rank.logs["nccl:0000000000000abc"], rank.logs["nccl:0000000000000002"]
    assert [one.op for one in early.span(1, early.calls + 1)] == ["all_gather"]
    assert (early.rooted, late.rooted) == (False, True)
    assert rank.details["armed_ns"]


def test_calls_are_numbered_from_the_communicators_first(nccl: Built, rings: Path) -> None:
    # Rank 1 was armed after the only broadcast.
    for rank, at in enumerate((3, 5)):
        program = Program(nccl, {**DORMANT, "NCCLSCOPE_DIR": rings})
        lines = [call(), call("AllGather"), call(), call("Broadcast"), call(), call("AllGather")]
        lines.insert(at, f"mask {MASK}")
        program.end(f"open {nccl.plugin} 7", comm(rank, 2), *lines, call(), "kill")
    logs = [next(iter(rank.logs.values())) for rank in ncclscope.open_run(rings).ranks]
    assert [(log.first, log.calls) for log in logs] == [(4, 7), (6, 7)]
    assert [call.seq for call in logs[1].span(1, 8)] == [6, 7]
    verdict = ncclscope.diagnose(ncclscope.open_run(rings))
    assert verdict.to_dict()["verdict"] is None
    assert [(one.recorded, one.counted) for one in verdict.coverage.comms] == [(4, 4)]


def test_the_directory_may_be_the_variables_value(nccl: Built, rings: Path) -> None:
    program = Program(nccl, {"NCCLSCOPE_ARM": rings})
    program.end(f"open {nccl.plugin} 5", comm(0), f"mask {MASK}", call())
    assert len([*rings.glob("*.ring")]) == 1


def test_each_time_it_is_armed_is_a_record_of_its_own(nccl: Built, rings: Path) -> None:
    program = Program(nccl, {**DORMANT, "NCCLSCOPE_DIR": rings})
    program.ask(f"open {nccl.plugin} 5", comm(0), f"mask {MASK}", call(), call(), "mask 0")
    program.ask(call(), "sleep 400", f"mask {MASK}", call())
    program.end()
    calls = [ncclscope.open_run(path).ranks[0].records for path in rings.glob("*.ring")]
    assert sorted(calls) == [1, 2]
    assert ncclscope.open_run(rings).ranks[0].records == 1  # the newest


@pytest.mark.parametrize("skipped", [False, True])
def test_ranks_that_were_armed_at_different_calls_are_compared(
    nccl: Built, rings: Path, skipped: bool
) -> None:
    for rank in range(4):
        program = Program(nccl, {**DORMANT, "NCCLSCOPE_DIR": rings})
        lines = [call(count=1 + step * 7 % 23) for step in range(60)]
        if rank == 2 and skipped:
            del lines[40]
        lines.insert(5 + rank, f"mask {MASK}")
        program.end(f"open {nccl.plugin} 5", comm(rank), *lines, "kill")
    verdict = ncclscope.diagnose(ncclscope.open_run(rings)).to_dict()
    if skipped:
        found = verdict["verdict"]
        assert (found["kind"], found["diverging_ranks"]) == ("missing_call", [2])
        assert found["seq"] == 41
    else:
        assert verdict["verdict"] is None


def test_attach_arms_a_job_and_puts_it_back(nccl: Built, rings: Path) -> None:
    masks: list[int] = []
    programs: list[Program] = []

    def informed(mask: int) -> None:
        masks.append(mask)
        for rank, program in enumerate(programs):
            steps = [] if mask == 0 else [call(count=5 + step) for step in range(20)]
            if rank == 2 and steps:
                del steps[7]
            program.ask(f"mask {mask}", *steps)

    with _ras(GOOD, informed) as (host, port):
        for rank in range(4):
            job = {"RANK": rank, "WORLD_SIZE": 4, "NCCL_RAS_ADDR": f"{host}:{port}"}
            programs.append(Program(nccl, {**DORMANT, "NCCLSCOPE_DIR": rings, **job}))
            programs[-1].ask(f"open {nccl.plugin} 7", comm(rank), call())
        pids = [str(program.pid) for program in programs]
        command = [sys.executable, "-m", "ncclscope", "attach", *pids, "--json"]
        command += ["--arm", "0.5", "--gap", "0.5"]
        done = fork_server.run(command, capture_output=True, text=True)
    assert masks == [MASK, 0], done.stderr
    assert "recording for 0.5 s" in done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["verdict"]["diverging_ranks"] == [2], verdict
    for program in programs:
        program.end()


def test_a_job_that_was_not_started_dormant_is_refused(nccl: Built, rings: Path) -> None:
    program = Program(nccl, {"NCCLSCOPE_DIR": rings, "RANK": 0, "WORLD_SIZE": 1})
    program.ask(f"open {nccl.plugin} 5", comm(0, 1))
    command = [sys.executable, "-m", "ncclscope", "attach", str(program.pid), "--arm"]
    done = fork_server.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no dormant profiler plugin" in done.stderr
    program.end()


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"CLIENT PROTOCOL 2": "HTTP/1.0 400"}, "is not NCCL's RAS"),
        ({**GOOD, "mask": "ERROR: Unknown command"}, "Unknown command"),
        ({**GOOD, "mask": ""}, "does not set the mask"),
        ({"CLIENT PROTOCOL 2": "SERVER PROTOCOL 2"}, "cannot be reached"),
        ({}, "cannot be reached"),
    ],
)
def test_a_ras_that_cannot_arm_is_one_clear_error(answers: dict[str, str], message: str) -> None:
    began = time.monotonic()
    with _ras(answers, lambda mask: None) as address, pytest.raises(InputError, match=message):
        set_mask(address, MASK)
    assert time.monotonic() - began < 10


def test_no_ras_is_one_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    with pytest.raises(InputError, match="cannot be reached"):
        set_mask(address, MASK)

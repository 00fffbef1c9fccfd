"""examples/routed_experts: the same load with routing off, by shared memory, and by the outputs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "routed_experts"
LAYERS, RANKS = 4, 4
SMALL = (
    *("--layers", str(LAYERS), "--requests", "16", "--concurrency", "8"),
    *("--prompt-tokens", "160", "--burst-tokens", "320", "--max-tokens", "12", "--blocks", "24"),
)
"""So few blocks that requests are preempted."""
MARK = "ROUTED_EXPERTS_TEST"
DEADLINE = 120.0
TIMEOUT = 8
"""Seconds for a collective; a busy machine takes up to two."""


class Started:
    """The command, while it runs.

    Args:
        arguments: Its own.
        log: Where its talk goes.
    """

    def __init__(self, arguments: tuple[str, ...], log: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.log = log
        with log.open("w") as talk:
            self.program = subprocess.Popen(
                [sys.executable, str(EXAMPLE / "run.py"), *arguments],
                stdout=subprocess.PIPE,
                stderr=talk,
                text=True,
                env={**os.environ, MARK: self.mark},
            )

    def processes(self) -> dict[str, psutil.Process]:
        """Return those that it has left or still runs, by the names that they gave themselves."""
        found = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark:
                    found[process.name()] = process
        return found

    def files(self) -> list[Path]:
        """Return its files in shared memory."""
        return list(Path("/dev/shm").glob(f"routed-experts-{self.program.pid}-*"))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE
        while not condition():
            assert self.program.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def nothing_left(self) -> bool:
        """Return whether all processes and files are gone; a kill takes a moment."""
        deadline = time.monotonic() + DEADLINE
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        return not self.processes() and not self.files()

    def finish(self) -> tuple[int, str]:
        """Return its exit status and what it printed."""
        printed, _ = self.program.communicate(timeout=DEADLINE * 2)
        return self.program.returncode, printed


@contextmanager
def started(*arguments: str, log: Path) -> Iterator[Started]:
    command = Started(arguments, log)
    try:
        yield command
    finally:
        command.program.kill()
        command.program.communicate()
        for process in command.processes().values():
            with suppress(psutil.Error):
                process.kill()


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """Run four rows and the volume table."""
    directory = tmp_path_factory.mktemp("routed")
    figures = directory / "figures.json"
    rows = ("--rows", "baseline", "old", "new-half", "new-all")
    with started(*SMALL, *rows, "--json", str(figures), log=directory / "log") as command:
        status, printed = command.finish()
        assert status == 0, printed + command.log.read_text()
        assert command.nothing_left()
    return json.loads(figures.read_text()), printed


@pytest.fixture(scope="module")
def rows(table: tuple[dict[str, Any], str]) -> dict[str, Any]:
    return {row["row"]["name"]: row for row in table[0]["rows"]}


def test_all_requests_are_answered_and_all_ranks_agree(rows: dict[str, Any]) -> None:
    assert list(rows) == ["baseline", "old", "new-half", "new-all"]
    for row in rows.values():
        judged, figures = row["judged"], row["figures"]
        assert (judged["answered"], judged["unanswered"], judged["refused"]) == (24, 0, 0)
        # Of the burst, half generates eight tokens more, on the second replica.
        assert judged["tokens"] == 24 * 12 + 4 * 8
        assert judged["wrong_tokens"] == figures["wrong_rows"] == figures["failed"] == 0
        assert not row["hung"]
        assert row["workers"]["equal"]
        assert row["engines"]["equal"]
        assert row["workers"]["status"] == row["engines"]["status"] == "ok"
        # A step is an agreement on sizes; in each layer, two sums, three gathers, a scatter.
        assert row["workers"]["calls"] == RANKS * figures["steps"] * (1 + 6 * LAYERS)
        assert figures["preemptions"] > 0
        assert figures["cached_tokens"] > 0


def test_every_row_of_routing_is_right_or_marked_as_missing(rows: dict[str, Any]) -> None:
    judged = {name: row["judged"] for name, row in rows.items()}
    assert [judged["baseline"][kind] for kind in ("right", "missing", "wrong")] == [0, 0, 0]
    asked = sum(judged["old"][kind] for kind in ("right", "missing", "wrong"))
    assert judged["new-all"] == {**judged["new-all"], "right": asked, "missing": 0, "wrong": 0}
    half = judged["new-half"]
    assert half["right"] > 0
    assert half["wrong"] == 0
    # What a request shares with one that did not opt in is not known, and reported as missing.
    assert half["missing"] > 0


def test_only_the_old_way_waits_and_locks(rows: dict[str, Any]) -> None:
    saves = {name: row["figures"]["save_us"] > 0 for name, row in rows.items()}
    assert saves == {"baseline": False, "old": True, "new-half": False, "new-all": False}


def test_bytes_on_the_wire(table: tuple[dict[str, Any], str]) -> None:
    narrow, wide = table[0]["volume"]
    assert (narrow["dtype"], wide["dtype"]) == ("uint8", "int32")
    # 36 layers, top-4: 144 numbers a token. The proposal counts four bytes for each.
    assert (narrow["nobody"], narrow["decode"], narrow["prefill"]) == (0, 144, 144 * 2708)
    assert (wide["nobody"], wide["decode"], wide["prefill"]) == (0, 576, 576 * 2708)
    for volume, size in ((narrow, 1), (wide, 4)):
        assert volume["good"]
        assert volume["judged"]["right"] == 2 * (2708 + 8)
        file = 128 + (2708 + 8) * 144 * size
        assert volume["npy"] == -(-file // 3) * 4
        assert volume["compact"] < volume["npy"]
        assert 0 < volume["around"] < 100


def test_tables_fit_into_80_columns(table: tuple[dict[str, Any], str]) -> None:
    printed = table[1]
    assert max(map(len, printed.splitlines())) <= 80
    for title in ("baseline", "old: save and read", "new: half opt in", "new: all opt in"):
        lines = [line for line in printed.splitlines() if line.startswith(title)]
        assert len(lines) == 3
        assert lines[0].split()[-1] == "no"
        assert lines[1].split()[-1] == "ok"
    assert "The old way did not hang here" in printed


def test_a_blocked_event_loop_hangs_the_other_replica(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    given = ("--rows", "old", "--timeout", "3", "--no-volume", "--json", str(figures))
    # More than can be answered before the engine is stopped.
    load = (*SMALL, "--requests", "5000")
    with started(*load, *given, log=tmp_path / "log") as command:
        command.wait_for(lambda: "ready" in command.log.read_text())
        command.processes()["engine-1"].suspend()
        status, printed = command.finish()

        assert status == 0, printed + command.log.read_text()
        (row,) = json.loads(figures.read_text())["rows"]
        assert row["hung"]
        assert row["judged"]["unanswered"] > 0
        assert row["figures"]["failed"] > 0
        (line,) = (line for line in printed.splitlines() if line.endswith("YES"))
        assert line.startswith("old: save and read")
        assert "did not hang" not in printed
        assert command.nothing_left()


def test_a_lock_that_is_held_hangs_the_rows_that_take_it(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    names = ("baseline", "old", "old-read", "old-save", "new-all")
    given = ("--timeout", str(TIMEOUT), "--hold-lock", str(2 * DEADLINE), "--no-volume")
    with started(
        *SMALL, *given, "--rows", *names, "--json", str(figures), log=tmp_path / "log"
    ) as command:
        status, printed = command.finish()

        assert status == 0, printed + command.log.read_text()
        assert command.nothing_left()
    rows = {row["row"]["name"]: row for row in json.loads(figures.read_text())["rows"]}
    assert [name for name in names if rows[name]["hung"]] == ["old", "old-read", "old-save"]
    for name in names:
        # The timeout is the collectives' own: no row is cut off from outside.
        assert (rows[name]["figures"]["failed"] > 0) == rows[name]["hung"]
        assert (rows[name]["judged"]["unanswered"] > 0) == rows[name]["hung"]


def test_requests_that_arrive_while_the_engines_pause_are_served(tmp_path: Path) -> None:
    load = ("--requests", "100", "--concurrency", "1", "--prompt-tokens", "20", "--max-tokens", "3")
    size = ("--dp", "2", "--tp", "1", "--layers", "1", "--burst-tokens", "0", "--no-volume")
    with started("--rows", "baseline", *load, *size, log=tmp_path / "log") as command:
        status, printed = command.finish()

        assert status == 0, printed + command.log.read_text()


def test_nothing_is_left_after_sigterm(tmp_path: Path) -> None:
    with started(*SMALL, "--requests", "5000", log=tmp_path / "log") as command:
        command.wait_for(lambda: "ready" in command.log.read_text())
        names = set(command.processes())
        assert {
            "front",
            *(f"engine-{n}" for n in (0, 1)),
            *(f"worker-{n}" for n in range(4)),
        } <= names
        assert len(command.files()) == 1
        command.program.send_signal(signal.SIGTERM)
        status, _ = command.finish()

        assert status == 128 + signal.SIGTERM
        assert command.nothing_left()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--dp", "1", "--tp", "1"), "a single worker has no peers"),
        (("--blocks", "10"), "4120 tokens do not fit into 10 KV blocks"),
        (("--requests", "0"), "requests=0 is too small"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], complaint: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "run.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert complaint in line

"""The live view of `ncclscope watch`, on real terminals of two sizes."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ncclscope import open_run
from ncclscope.lab.launcher import Laboratory
from ncclscope.lab.plan import Program
from ncclscope.model import Call
from ncclscope.tracing.tracer import Tracer
from ncclscope.wording.names import ranks_text
from tests.support.emulator import Emulator
from tests.support.laboratories import warm_laboratories
from tests.support.rings import tracer_in

pytestmark = pytest.mark.timeout(180)

WATCH = [sys.executable, "-m", "ncclscope", "watch"]
SIZES = [(80, 24), (200, 50)]
OPS = ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "barrier")


class Ranks:
    """Ranks that live as long as this test, on two communicators."""

    def __init__(self, directory: Path, size: int, label: str = "tp:0") -> None:
        self.directory = directory
        self.size = size
        self.tracers = [
            tracer_in(directory, rank=rank, world_size=size, labels={"tp": str(rank)})
            for rank in range(size)
        ]
        self._comms = [self._open(tracer, label) for tracer in self.tracers]
        self._count = 0

    def _open(self, tracer: Tracer, label: str) -> dict[str, object]:
        return {
            "tp": tracer.communicator("k/tp", label, range(self.size), "gloo"),
            "world": tracer.communicator("k/world", "world", range(self.size), "gloo"),
        }

    def post(self, comm: str = "tp", *, odd: int | None = None, late: tuple[int, ...] = ()) -> None:
        """Post a call on all ranks but those that are late; on the diverging one another size."""
        self._count += 1
        op = OPS[self._count % len(OPS)]
        for rank, (tracer, comms) in enumerate(zip(self.tracers, self._comms, strict=True)):
            if rank in late:
                continue
            shape = (self._count, 3 if rank == odd else 2)
            site = f"layers/model.py:{100 + self._count % 7} forward"
            position = tracer.record(comms[comm], op, shape=shape, dtype="float32", site=site)  # type: ignore[arg-type]
            if not late:
                tracer.complete(position)

    def last(self, rank: int, comm: str, count: int) -> list[Call]:
        """Return the last calls of a rank, by the reader that diagnoses."""
        log = open_run(self.directory).by_rank[rank].logs[f"k/{comm}"]
        return list(log.span(log.calls + 1 - count, log.calls + 1))


def rows(screen: str, title: str) -> list[str]:
    """Return the lines below the rule that bears a title, up to the next one."""
    lines = screen.splitlines()
    rules = [n for n, line in enumerate(lines) if line.startswith("──") and title in line]
    if not rules:
        return []
    start = rules[0]
    stop = next((n for n in range(start + 1, len(lines)) if lines[n].startswith("──")), -1)
    return lines[start + 1 : stop]


def picked(terminal: Emulator) -> str:
    """Return the line of the list that is shown in reverse."""
    for line in rows(terminal.screen, "tab:")[1:]:
        if line.strip() and terminal.style(line[:40]).reverse:
            return line
    raise AssertionError(f"nothing is picked:\n{terminal.screen}")


def shows(calls: list[Call]) -> Callable[[str], bool]:
    """Return whether the screen shows these calls one below the other, as recorded."""

    def is_met(screen: str) -> bool:
        wanted = [
            rf"#{call.seq} .*{call.op} \[{','.join(map(str, call.shape or ()))}\].*model\.py:"
            rf"{(call.site or '').partition(':')[2].partition(' ')[0]}"
            for call in calls
        ]
        return re.search(r"[^\n]*\n[^\n]*".join(wanted), screen) is not None

    return is_met


def shows_text(pattern: str) -> Callable[[str], bool]:
    """Return whether the screen shows this."""
    return lambda screen: re.search(pattern, screen) is not None


@pytest.mark.parametrize(("columns", "lines"), SIZES)
def test_keys_pick_a_rank_or_a_communicator_and_its_last_calls_are_shown(
    rings: Path, columns: int, lines: int
) -> None:
    ranks = Ranks(rings, 5)
    for number in range(40):
        ranks.post("world" if number % 4 == 0 else "tp")
    with Emulator([*WATCH, rings], columns, lines) as terminal:
        screen = terminal.wait_for("RANK 0 pid", shows(ranks.last(0, "tp", 2)))
        assert [line.split()[0] for line in rows(screen, "RANKS")[1:]] == list("01234")
        assert max(map(len, screen.splitlines())) <= columns

        terminal.press("j\x1b[B")
        terminal.wait_for("RANK 2 pid")
        assert picked(terminal).split()[0] == "2"
        for _ in range(3):
            ranks.post()
        terminal.wait_for(shows(ranks.last(2, "tp", 4)))

        terminal.press("4")
        terminal.wait_for("RANK 4 pid")
        terminal.press("\x1b[A")
        terminal.wait_for("RANK 3 pid")

        terminal.press("\t")
        terminal.wait_for("COMMUNICATORS", "TP:0 ranks 0-4, gloo", shows(ranks.last(0, "tp", 5)))
        terminal.press("j\r")
        terminal.wait_for("WORLD ranks 0-4, gloo", shows(ranks.last(0, "world", 5)))

        terminal.press("?")
        terminal.wait_for("KEYS AND MARKS", "pick a rank or communicator")
        terminal.press("l")
        terminal.wait_for(
            r"LOG", lambda screen: "ranks 0-4 appeared" in " ".join(rows(screen, "LOG"))
        )
        terminal.press("d")
        terminal.wait_for("No divergence and no hang has been found")
        terminal.press("q")
        assert terminal.end() == 0


def test_older_calls_are_a_key_away(rings: Path) -> None:
    ranks = Ranks(rings, 2)
    for _ in range(60):
        ranks.post()
    with Emulator([*WATCH, rings]) as terminal:
        screen = terminal.wait_for("#60 ")
        shown = len([line for line in rows(screen, "RANK 0") if "#" in line])
        terminal.press("b")
        calls = open_run(rings).by_rank[0].logs["k/tp"].span(60 - 2 * shown, 60 - shown)
        terminal.wait_for("newer lines: space", shows(list(calls)[2:]))
        assert "#60 " not in terminal.screen
        terminal.press(" ")
        terminal.wait_for("#60 ", "older: b")


@pytest.mark.parametrize(
    ("fault", "status", "columns", "lines"),
    [
        ("sleeping_rank", "HUNG", 200, 50),
        pytest.param("wrong_op", "DIVERGED", 80, 24, marks=pytest.mark.slow),
        pytest.param("wrong_op", "DIVERGED", 200, 50, marks=pytest.mark.slow),
        pytest.param("sleeping_rank", "HUNG", 80, 24, marks=pytest.mark.slow),
    ],
)
def test_a_fault_of_real_ranks_is_shown_with_its_rank(
    rings: Path, fault: str, status: str, columns: int, lines: int
) -> None:
    program = Program(tp=4, dp=1, fault=fault, seed=1)
    (odd,) = program.planted()["diverging_ranks"]
    with (
        Emulator([*WATCH, rings, "--stall", 2], columns, lines) as terminal,
        warm_laboratories(),
        Laboratory(program, rings) as laboratory,
    ):
        for _ in laboratory.watch(stall_after=60):
            terminal.receive(0.05)
            if f" {status} " in terminal.screen:
                break
        kind = program.planted()["kind"].replace("_", " ")
        terminal.wait_for(
            f" {status} ", f"! {odd}", f"Rank {odd} ", f" · {kind} · rank {odd}", "q quit"
        )
        assert picked(terminal).split()[:2] == ["!", str(odd)]
        assert terminal.style(f" {status} ").fg == "red"

        terminal.press("f")  # where there is room for both sequences
        others = ranks_text(rank for rank in range(4) if rank != odd)
        both = re.compile(rf"^ +{others} +rank {odd}$.*^> ", re.M | re.S)
        terminal.wait_for(lambda screen: "RANKS" not in screen and both.search(screen) is not None)

        terminal.press("fl")
        terminal.wait_for(
            lambda screen: any(f"{status.lower()}: Rank {odd} " in r for r in rows(screen, "LOG"))
        )
        terminal.press("q")
        assert terminal.end() == 1
        assert terminal.is_restored
    # The last word stays where the shell goes on.
    assert f"{status} · " in terminal.screen
    assert f"ncclscope diagnose {rings}" in terminal.screen


@pytest.mark.slow
def test_a_killed_rank_is_marked_at_once(rings: Path) -> None:
    program = Program(tp=4, dp=1, fault="killed_rank", seed=1)
    (odd,) = program.planted()["diverging_ranks"]
    with (
        Emulator([*WATCH, rings, "--stall", 3600]) as terminal,
        warm_laboratories(),
        Laboratory(program, rings) as laboratory,
    ):
        for _ in laboratory.watch(stall_after=60):
            terminal.receive(0.05)
            if f"X {odd}" in terminal.screen:
                break
        terminal.press("l")
        terminal.wait_for(
            f"rank {odd} ended without a record", "1 ended", f"X {odd}", lambda s: "LOG" in s
        )
        row = terminal.line(f"X     {odd} ")
        assert row.endswith("ended")


def quit_by_key(terminal: Emulator) -> None:
    terminal.press("q")


def interrupt(terminal: Emulator) -> None:
    terminal.press("\x03")


def terminate(terminal: Emulator) -> None:
    terminal.process.terminate()


def hang_up(terminal: Emulator) -> None:
    terminal.process.send_signal(signal.SIGHUP)


@pytest.mark.parametrize(
    ("end", "status"),
    [(quit_by_key, 0), (interrupt, 130), (terminate, 143), (hang_up, 129)],
)
def test_the_terminal_comes_back(rings: Path, end: Callable[[Emulator], None], status: int) -> None:
    Ranks(rings, 2).post()
    with Emulator([*WATCH, rings]) as terminal:
        terminal.wait_for("RANKS", "RANK 0 pid")
        assert terminal.is_taken
        assert not terminal.echoes
        end(terminal)
        assert terminal.end() == status
        assert terminal.is_restored
        assert terminal.received.endswith(b"\n") or status in (129, 143)


def test_it_comes_back_when_the_program_fails(rings: Path, tmp_path: Path) -> None:
    Ranks(rings, 2).post()
    program = f"""
import sys, tempfile
tempfile.tempdir = {str(tmp_path)!r}
from ncclscope.__main__ import main
from ncclscope.render.tui import picture
picture.Picture._calls = None
sys.exit(main())
"""
    with Emulator([sys.executable, "-c", program, "watch", rings]) as terminal:
        assert terminal.end() == 70
        assert terminal.is_restored
        assert b"\x1b[?1049h" in terminal.received
        assert "TypeError" in terminal.screen
    (report,) = tmp_path.glob("ncclscope-error-*")
    assert "Traceback" in report.read_text()


def check_modes(terminal: Emulator) -> None:
    """Ask for the modes that programs of a shell get."""
    terminal.press("clear; stty -a\n")
    terminal.wait_for(" icanon ", lambda screen: re.search(r"[ \n]echo ", screen) is not None)


def test_stopping_it_gives_the_terminal_to_the_shell_for_a_while(rings: Path) -> None:
    ranks = Ranks(rings, 2)
    ranks.post()
    shell = ["/bin/bash", "--norc", "--noprofile", "-i"]
    with Emulator(shell, PS1="ready> ") as terminal:
        terminal.wait_for("ready>")
        terminal.press(f"{' '.join(WATCH)} {rings}\n")
        terminal.wait_for("RANKS", "RANK 0 pid")
        terminal.press("\x1a")
        terminal.wait_for("Stopped", lambda _: not terminal.is_taken)
        check_modes(terminal)
        terminal.press("fg\n")
        terminal.wait_for("RANK 0 pid", lambda _: terminal.is_taken and not terminal.echoes)
        terminal.press("j")
        terminal.wait_for("RANK 1 pid")
        terminal.press("q")
        terminal.wait_for(lambda _: not terminal.is_taken)
        check_modes(terminal)
        terminal.press("exit 7\n")
        assert terminal.end() == 7


def test_in_the_background_it_prints_lines(rings: Path) -> None:
    ranks = Ranks(rings, 2)
    ranks.post()
    shell = ["/bin/bash", "--norc", "--noprofile", "-i"]
    with Emulator(shell, PS1="ready> ") as terminal:
        terminal.wait_for("ready>")
        terminal.press(f"{' '.join(WATCH)} {rings} & wait\n")
        terminal.wait_for("ok: 2 ranks")
        assert b"\x1b[?1049h" not in terminal.received
        terminal.press("\x03")
        terminal.press("kill %1; exit\n")
        terminal.end()


def test_another_size_is_another_picture(rings: Path) -> None:
    ranks = Ranks(rings, 30)
    for _ in range(30):
        ranks.post()
    with Emulator([*WATCH, rings]) as terminal:
        terminal.wait_for("RANKS 1-9 of 30", "q quit")
        terminal.resize(120, 45)
        screen = terminal.wait_for("RANKS 1-17 of 30", "── LOG", "s worst first", "posted")
        assert len(screen.splitlines()) == 45
        terminal.resize(60, 12)
        screen = terminal.wait_for("RANKS 1-3 of 30", lambda s: "── LOG" not in s and "q quit" in s)
        assert max(map(len, screen.splitlines())) <= 60
        terminal.resize(20, 4)
        terminal.wait_for("OK", lambda screen: "RANKS" in screen)


def test_the_diverging_rank_is_found_among_many(rings: Path) -> None:
    ranks = Ranks(rings, 64)
    for _ in range(3):
        ranks.post()
    ranks.post(late=(41, 57))
    with Emulator([*WATCH, rings, "--stall", 3600]) as terminal:
        # Both are behind, and still; neither is in sight.
        screen = terminal.wait_for("RANKS 1-9 of 64", "< 41 57", "RANK 0 pid")
        assert not any(line.startswith("<") for line in rows(screen, "RANKS"))
        terminal.press("n")
        terminal.wait_for("RANK 41 pid")
        assert picked(terminal).split()[:2] == ["<", "41"]
        assert "−1" in picked(terminal)
        terminal.press("n")
        terminal.wait_for("RANK 57 pid")
        terminal.press("n")
        terminal.wait_for("RANK 41 pid")
        terminal.press("63")
        terminal.wait_for("RANK 63 pid", "rank 63")
        terminal.press("gs")
        terminal.wait_for("RANKS 1-9 of 64, worst first")
        above = rows(terminal.screen, "RANKS")[1:4]
        assert [line.split()[:2] for line in above[:2]] == [["<", "41"], ["<", "57"]]
        terminal.press("G")
        terminal.wait_for("RANKS 56-64 of 64")


def test_what_happens_is_logged(rings: Path) -> None:
    ranks = Ranks(rings, 3)
    ranks.post()
    with Emulator([*WATCH, rings, "--stall", 0.5]) as terminal:
        terminal.wait_for("ranks 0-2 appeared")
        ranks.post(late=(1,))
        terminal.wait_for("── HUNG")
        terminal.press("l")
        # One poll may see it of one rank, the next of the other.
        for rank in (0, 2):
            terminal.wait_for(shows_text(rf"ranks? (0 )?{rank}( 2)? stalled: inside a collective"))
        terminal.wait_for("hung: Rank 1 ")
        for tracer in ranks.tracers:
            tracer.close()
        terminal.wait_for(shows_text(r"ranks? .* exited normally"), "all processes have ended")


def test_no_escape_sequence_of_anybody_else_reaches_the_terminal(rings: Path) -> None:
    label = "tp\x1b]0;owned\x07\x1b[2J\x9b31m\r\n\u202e漢字"
    ranks = Ranks(rings, 2, label)
    ranks.tracers[0].describe(labels={"\x1b[31m": "\x1b[32m"}, role="\x1b[33m")
    ranks.post()
    ranks.post(odd=1)
    for rank, tracer in enumerate(ranks.tracers):
        comm = tracer.communicator("k/tp", label, range(2), "\x1b[5m")
        site = "a\x1b[6mb.py:3 \x1bc"
        tracer.record(comm, "all\x1b[35m", shape=(rank,), dtype="\x1b[36m", site=site)
    with Emulator([*WATCH, rings], 200, 50) as terminal:
        terminal.wait_for("DIVERGED", "\\x1b]0;owned", "漢字")
        for key in ("\r", "\t", "d", "l", "?"):
            terminal.press(key)
        terminal.wait_for("KEYS AND MARKS")
        terminal.press("q")
        assert terminal.end() == 1
        assert "\\x1b]0;owned" in terminal.screen, "nor to what is left"
    ours = rb"\x1b\[(?:\d+;\d+H|K|2J|[0-9;]*m|\?(?:1049|25)[hl])"
    assert b"\x1b" not in re.sub(ours, b"", terminal.received)
    assert not re.search(rb"\x1b\[[0-9;]*3[56]m|\x1b\[[56]m|\x07", terminal.received)
    assert "\x9b" not in terminal.received.decode()


def test_lines_where_there_is_no_such_terminal(rings: Path) -> None:
    Ranks(rings, 2).post()
    for arguments, variables in (
        (["--plain"], {}),
        ([], {"TERM": "dumb"}),
        ([], {"TERM": None}),
    ):
        with Emulator([*WATCH, rings, *arguments], **variables) as terminal:
            terminal.wait_for(": 2 ranks, idle")
            assert b"\x1b" not in terminal.received
            terminal.press("\x03")
            assert terminal.end() == 130


def test_without_colours_marks_are_left(rings: Path) -> None:
    ranks = Ranks(rings, 3)
    ranks.post()
    ranks.post(odd=1)
    with Emulator([*WATCH, rings], NO_COLOR="1") as terminal:
        terminal.wait_for("DIVERGED", "! 1")
        assert picked(terminal).startswith("!")
        terminal.press("q")
        assert terminal.end() == 1
    assert not re.search(rb"\x1b\[(?:[0-9;]*;)?[34]\dm", terminal.received)


def test_without_keys_there_is_still_a_picture(rings: Path) -> None:
    Ranks(rings, 2).post()
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        with Emulator([*WATCH, rings], stdin=nothing) as terminal:
            terminal.wait_for("RANK 0 pid", "no keys: stdin is no terminal")
            terminal.press("\x03")
            assert terminal.end() == 130
            assert terminal.is_restored
    finally:
        os.close(nothing)


@contextmanager
def held(terminal: Emulator) -> Iterator[None]:
    terminal.hold(held=True)
    try:
        yield
    finally:
        terminal.hold(held=False)


def test_a_terminal_that_takes_nothing_does_not_stop_the_watch(rings: Path, tmp_path: Path) -> None:
    ranks = Ranks(rings, 40)
    ranks.post()
    marker = tmp_path / "marker"
    command = [*WATCH, rings, "--interval", 0.01, "--on-hang", f"echo $NCCLSCOPE_KIND > {marker}"]
    with Emulator(command, 200, 50) as terminal:
        terminal.wait_for("RANKS", "RANK 0 pid")
        with held(terminal):
            ranks.post(odd=7)
            deadline = time.monotonic() + 60
            while not (marker.exists() and marker.read_text()):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert marker.read_text() == "size_mismatch\n"
            terminal.process.send_signal(signal.SIGSTOP)
            terminal.process.send_signal(signal.SIGCONT)
        terminal.wait_for("DIVERGED", "! 7")
        terminal.press("q")
        assert terminal.end() == 1
        assert terminal.is_restored


def test_what_a_command_prints_does_not_spoil_the_picture(rings: Path) -> None:
    ranks = Ranks(rings, 3)
    ranks.post()
    command = [*WATCH, rings, "--on-hang", "echo loud; false"]
    with Emulator(command) as terminal:
        terminal.wait_for("RANKS", "RANK 0 pid")
        ranks.post(odd=2)
        terminal.wait_for(lambda _: b"loud" in terminal.received)
        terminal.wait_for("DIVERGED", "! 2", "Rank 2 ", lambda screen: "loud" not in screen)
        terminal.press("l")
        terminal.wait_for("--on-hang exited with status 1")
        terminal.press("q")
        assert terminal.end() == 1
        assert b"loud" in terminal.received
        assert "ncclscope: --on-hang exited with status 1" in terminal.screen


def test_until_divergence_leaves_the_verdict_behind(rings: Path) -> None:
    ranks = Ranks(rings, 3)
    ranks.post()
    with Emulator([*WATCH, rings, "--until-divergence"]) as terminal:
        terminal.wait_for("RANK 0 pid")
        ranks.post(odd=2)
        assert terminal.end() == 1
        assert terminal.is_restored
        assert "size mismatch · rank 2" in terminal.screen


def test_a_job_that_had_ended_is_shown_with_its_verdict(rings: Path) -> None:
    ranks = Ranks(rings, 3)
    ranks.post()
    ranks.post(odd=2)
    for tracer in ranks.tracers:
        tracer.close()
    with Emulator([*WATCH, rings]) as terminal:
        terminal.wait_for("DIVERGED", "all have ended", "before this watch began", "rank 2")
        terminal.press("\r")
        terminal.wait_for("RANK 2 pid", shows(ranks.last(2, "tp", 2)))
        terminal.press("q")
        assert terminal.end() == 1

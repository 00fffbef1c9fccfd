"""Texts of a job reach a terminal as text, and never as a command to it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.integration.test_command_line import NCCLSCOPE
from tests.support import fork_server

EVIL = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e\r\b"
"""Sets a title, clears the screen, has a control character of eight bits, and writes backwards."""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    directory = tmp_path / "job"
    directory.mkdir()
    for rank in range(2):
        lines: list[dict[str, object]] = [
            {"ncclscope_trace": 1, "rank": rank, "world_size": 2, "host": EVIL, "pid": 5}
            | {"labels": {EVIL: EVIL}},
            {"comm": EVIL, "label": EVIL, "ranks": [0, 1], "backend": EVIL},
            {"call": EVIL, "comm": EVIL, "site": EVIL, "dtype": EVIL, "redop": EVIL}
            | {"t_ns": 10**18},
            {"call": f"{EVIL}{rank}", "comm": EVIL, "site": EVIL, "dtype": "float32"}
            | {"t_ns": 10**18 + 5000},
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (directory / f"{rank}{EVIL.replace('/', '')}.jsonl").write_text(text)
    return directory


def output_of(*arguments: str | Path, status: int) -> str:
    done = fork_server.run(
        [*NCCLSCOPE, *map(str, arguments)],
        capture_output=True,
        env={**os.environ, "COLUMNS": "100"},
        check=False,
    )
    assert done.returncode == status, done.stderr
    # Colours are off without a terminal, so that all escape sequences are the job's.
    return (done.stdout + done.stderr).decode()


def assert_safe(text: str) -> None:
    assert "title" in text, "nothing of it was shown"
    assert {letter for letter in text if not letter.isprintable()} <= {"\n"}


@pytest.mark.parametrize("command", ["diagnose", "check"])
def test_verdicts_have_no_commands(command: str, job: Path) -> None:
    assert_safe(output_of(command, job, status=1))


@pytest.mark.parametrize("form", ["junit", "github"])
def test_formats_for_build_servers_have_no_commands(form: str, job: Path) -> None:
    assert_safe(output_of("check", job, "--format", form, status=1))


def test_differences_have_no_commands(job: Path) -> None:
    first, second = sorted(job.iterdir())
    assert_safe(output_of("diff", first, second, status=1))


def test_refusals_have_no_commands(tmp_path: Path) -> None:
    damaged = tmp_path / f"0{EVIL}.jsonl"
    damaged.write_text("{nothing\n")
    assert_safe(output_of("diagnose", damaged, status=2))
    assert_safe(output_of("diagnose", tmp_path / f"none{EVIL}", status=2))


@pytest.mark.parametrize(
    ("command", "status"),
    [(["watch", "--once"], 2), (["check"], 2), (["report", "-o", "x"], 2), (["run"], 126)],
)
def test_refused_names_are_one_line(command: list[str], status: int, tmp_path: Path) -> None:
    name = tmp_path / f"{EVIL}\nline.ring"
    name.write_bytes(b"no ring")

    text = output_of(*command, name, status=status)

    assert_safe(text)
    assert len(text.splitlines()) == 1


def test_a_comparison_with_a_refused_name_is_one_line(job: Path) -> None:
    text = output_of("diff", f"{job}#0", f"{job}#7{EVIL}\n", status=2)

    assert_safe(text)
    assert len(text.splitlines()) == 1

"""A job whose every name is hostile: no output holds a character or a line that acts."""

from __future__ import annotations

import html
import json
import os
import re
from pathlib import Path

import pytest

import ncclscope
from ncclscope.agents import answers
from tests.integration.test_command_line import NCCLSCOPE
from tests.support import fork_server

COMMAND = "::error file=x::PWN"
EVIL = (
    f'h"><script>alert(1)</script>\x1b]0;PWN\x07\x1b[31m\x9b31m\x7f\u202e\u2066\u200f\u2028\n{COMMAND}'
    f"\r\n=cmd|PWN\n# HELP PWN\nncclscope_status 99\n##[error]PWN {' '.join([COMMAND] * 40)}"
)
"""It breaks out of HTML, sets a title, writes backwards, and begins lines as commands do."""
LINES = re.compile(r"\s*(::error file=x|=cmd|# HELP PWN|ncclscope_status 99)")
SIZE = 3

Names = dict[str, list[str]]


@pytest.fixture(scope="module")
def rings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the rings of a job of which rank 1 posts another call."""
    folder = tmp_path_factory.mktemp("hostile") / "rings"
    for rank in range(SIZE):
        tracer = ncclscope.Tracer(
            folder,
            rank=rank,
            world_size=SIZE,
            capacity=1024,
            heartbeat=False,
            labels={EVIL: EVIL, "tp": EVIL},
            details={
                **dict.fromkeys(("run", "cwd", "command", "engine", "python"), EVIL),
                "host": f"{EVIL}{rank}",
                "boot_id": "b",
                "pid": 1 + rank,
                "argv": [EVIL],
                "versions": {EVIL: EVIL},
                "exception": {"type": EVIL, "site": EVIL},
            },
        )
        world = tracer.communicator(f"W{EVIL}", EVIL, range(SIZE), EVIL)
        other = tracer.communicator(f"X{EVIL}", f"=1+1{EVIL}", range(SIZE), EVIL)
        tracer.step(0, tokens=16)
        for number in range(4):
            op = "all_gather" if (number, rank) == (3, 1) else "all_reduce"
            site = f"/a/{EVIL}.py:1 f{EVIL}"
            dtype = f"float32{EVIL}"
            tracer.record(world, f"{op}{EVIL}", shape=(4,), dtype=dtype, redop=EVIL, site=site)
            tracer.record(world, op, shape=(8,), dtype="float32", site=f"a.py:3 {EVIL}")
            tracer.record(other, "barrier", site=f"b{EVIL}")
        tracer.close()
    return folder


OUTPUTS: Names = {
    "diagnose": ["diagnose", "RINGS"],
    "diagnose as JSON": ["diagnose", "RINGS", "--json"],
    "diff": ["diff", "RINGS#0", "RINGS#1"],
    "diff as JSON": ["diff", "RINGS#0", "RINGS#1", "--json"],
    "check": ["check", "RINGS"],
    "check for GitHub": ["check", "RINGS", "--format", "github"],
    "check for JUnit": ["check", "RINGS", "--format", "junit"],
    "watch": ["watch", "--once", "RINGS"],
    "watch for Prometheus": ["watch", "--once", "RINGS", "--textfile", "OUT.prom"],
    "report": ["report", "RINGS", "-o", "OUT.html"],
    **{
        form: ["export", "RINGS", "--format", form, "-o", "OUT.x"]
        for form in ("csv", "jsonl", "prometheus", "chrome", "flight-recorder-json")
    },
    "refusal": ["diagnose", f"RINGS/{EVIL[:150]}"],
}


def assert_harmless(text: str, name: str) -> None:
    assert "PWN" in text, "no hostile text was shown"
    assert {letter for letter in text if not letter.isprintable()} <= {"\n"}
    assert [line for line in text.split("\n") if LINES.match(line)] == []
    commands = [line for line in text.split("\n") if line.lstrip().startswith("::")]
    assert len(commands) == (name == "check for GitHub")
    assert "##[" not in text


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("columns", ["60", "100"])
def test_no_output_acts(name: str, columns: str, rings: Path, tmp_path: Path) -> None:
    words = [
        word.replace("RINGS", str(rings)).replace("OUT", str(tmp_path / "out"))
        for word in OUTPUTS[name]
    ]
    done = fork_server.run(
        [*NCCLSCOPE, *words],
        capture_output=True,
        env={**os.environ, "COLUMNS": columns},
        check=False,
    )
    assert done.returncode in (0, 1, 2 * (name == "refusal")), done.stderr
    texts = [done.stdout.decode(), done.stderr.decode()]
    texts += [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert_harmless("\n".join(texts), name)


def test_a_timeline_holds_no_command(rings: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.pftrace"
    command = [*NCCLSCOPE, "export", str(rings), "--format", "perfetto", "-o", str(target)]
    fork_server.run(command, capture_output=True, check=True)

    data = target.read_bytes()

    assert b"PWN" in data
    for hostile in ("\x1b]", "\u202e", f"\n{COMMAND}", "\u2066"):
        assert hostile.encode() not in data


def test_notebooks_show_texts_only(rings: Path) -> None:
    run = ncclscope.open_run(rings)

    for shown in (run._repr_html_(), ncclscope.diagnose(run)._repr_html_()):
        assert "<script>" not in shown
        assert_harmless(html.unescape(shown), "notebook")


@pytest.mark.parametrize("detail", [False, True])
def test_answers_for_agents_are_data(detail: bool, rings: Path) -> None:
    found = answers.ask("diagnose", paths=[str(rings)], detail=detail)

    assert_harmless(json.dumps(found["data"], ensure_ascii=False), "agents")
    assert "PWN" not in json.dumps({**found, "data": None})

"""The commands of docs/many-nodes.md, run as written there."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclscope.__main__ import main
from tests.support.nodes import Nodes, can_unshare, ncclscope, two_nodes
from tests.support.programs import ROOT
from tests.support.standins import add_stand_ins

TEXT = (ROOT / "docs" / "many-nodes.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    \$ ncclscope (collect .*)$", TEXT, re.MULTILINE)
OURS = [command for command in COMMANDS if "--ray" not in command]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with two_nodes(tmp_path_factory.mktemp("nodes")) as nodes:
        add_stand_ins(nodes)
        # What a pod has under this name is ours here.
        nodes.program("python3", f'exec "{sys.executable}" "$@"')
        yield nodes


def test_each_way_has_an_example() -> None:
    for option in ("--ray", "--slurm", "--kubernetes", "--ssh"):
        assert any(option in command for command in COMMANDS), option


@pytest.mark.skipif(not can_unshare(), reason="needs the right to make namespaces")
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=() if "--ssh node-a" in command else pytest.mark.slow)
        for command in OURS
    ],
)
def test_each_command_runs_as_written(nodes: Nodes, tmp_path: Path, command: str) -> None:
    words = [str(tmp_path / "hang") if word == "hang/" else word for word in shlex.split(command)]
    done = nodes.run(*words)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "2 of 2 nodes delivered" in done.stdout
    verdict = json.loads(ncclscope("diagnose", tmp_path / "hang", "--json").stdout)
    assert verdict["verdict"]["diverging_ranks"] == [2]


def test_options_of_the_text_exist(capsys: pytest.CaptureFixture[str]) -> None:
    printed = ""
    for command in ("collect", "diagnose", "watch"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        printed += capsys.readouterr().out
    ours = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT)) - {"--overlap", "--only", "--dir"}
    assert {option for option in ours if option not in printed} == set()

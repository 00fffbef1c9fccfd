"""The manual pages, as `make man` writes them."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ncclscope.__main__ import command_parsers
from tests.support.programs import ROOT


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("man")
    program = [sys.executable, ROOT / "docs" / "site" / "manual.py", target]
    subprocess.run(program, check=True, capture_output=True, cwd=ROOT)
    return target


def test_each_command_has_a_page_with_all_its_options(pages: Path) -> None:
    _, commands = command_parsers()
    assert {page.stem for page in pages.iterdir()} == {
        "ncclscope",
        *(f"ncclscope-{name}" for name in commands),
    }
    for name, parser in commands.items():
        text = (pages / f"ncclscope-{name}.1").read_text("utf-8").replace("\\-", "-")
        for option, action in parser._option_string_actions.items():
            assert action.help == argparse.SUPPRESS or option in text, f"{name} {option}"


def test_the_pages_are_well_formed(pages: Path) -> None:
    if shutil.which("groff") is None:
        for page in pages.iterdir():
            assert page.read_text("utf-8").startswith(".TH ")
        return
    for page in pages.iterdir():
        done = subprocess.run(
            ["groff", "-k", "-man", "-Tutf8", "-ww", "-z", page],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == "", page.name

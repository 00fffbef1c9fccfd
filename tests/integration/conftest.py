"""What several files of tests against vLLM need; imported only where it is asked for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """What one worker answers to the prompts of moe_serving.py, without any patch."""
    from tests.integration.moe_serving import answers_of_one

    return answers_of_one(tmp_path_factory.mktemp("single"))


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory that does not outlive the test: checkpoints and rings are large."""
    yield tmp_path
    shutil.rmtree(tmp_path)

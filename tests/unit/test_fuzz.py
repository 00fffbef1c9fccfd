"""Some of the inputs that ``make fuzz`` makes, after those that once failed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import oracles
from tests.fuzz.corpus import CORPUS, add_kept, keep
from tests.fuzz.inputs import Answer, BaseInput, Input, Surface
from tests.fuzz.judges import Block, Judges
from tests.support.examples import EVERYTHING


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_damaged_inputs_are_answered_within_their_budget() -> None:
    count = 10_000 if EVERYTHING else 500
    command = [sys.executable, "-m", "tests.fuzz", "--count", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=870)

    assert done.returncode == 0, done.stdout + done.stderr
    total = re.search(r"^(\d+) inputs in .* 0 failed$", done.stdout, re.MULTILINE)
    assert total is not None, done.stdout
    assert int(total[1]) == count + len(list(CORPUS.glob("*.tar.gz")))


class Faulty(Surface):
    """A surface on which every input fails in a way of its own."""

    def __init__(self) -> None:
        super().__init__("faulty", [BaseInput("one", {"file": b"1"})], [_unchanged])

    def judge(self, given: Input, seed: int) -> Answer:
        if seed == 1:
            raise ValueError("a bug")
        if seed == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if seed == 3:
            while True:
                pass
        if seed == 4:
            assert b"x" * (400 << 20)
        return Answer("read")


def _unchanged(_dice: object, base: BaseInput) -> Input:
    return Input(base, base.files, "nothing")


@pytest.mark.slow
def test_an_input_that_ends_its_judge_is_found_and_the_others_are_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(oracles, "SECONDS", 2.0)
    judges = Judges({"faulty": Faulty()})
    result = judges.judge(Block("faulty", tuple(range(6))))
    judges.close()

    failures = {seed: answer.kind for seed, answer in result.failures.items()}
    assert failures == {1: "error", 2: "killed", 3: "too slow", 4: "too much memory"}
    assert result.counts["read"] == 2
    assert "ValueError: a bug" in result.failures[1].text


def test_a_kept_input_is_judged_again_and_damaged_further(tmp_path: Path) -> None:
    surface = Faulty()
    changed = Input(surface.bases[0], {"file": b"2"}, "a digit", forged=True)
    keep(changed, "faulty", tmp_path / "a.tar.gz", "a bug")

    add_kept({"faulty": surface}, [tmp_path / "a.tar.gz"])

    assert surface.make(-1).files == {"file": b"2"}
    assert {surface.make(seed).base.name for seed in range(16)} == {"one", "kept a"}

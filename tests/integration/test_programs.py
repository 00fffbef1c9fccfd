"""The most instructive programs of the corpus, examined in each way that a user can."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpus.runner.misses import is_expected
from tests.corpus.runner.questions import WAYS, ask
from tests.corpus.runner.truth import PROGRAMS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


INSTRUCTIVE = ("ddp_no_sync", "early_stop_local", "fifo_open", "gather_object_rank0", "slow_rank")


@pytest.mark.parametrize("name", INSTRUCTIVE)
def test_each_way_of_asking_is_fair_or_a_known_miss(name: str, tmp_path: Path) -> None:
    answers = list(ask(PROGRAMS[name], WAYS, tmp_path))
    assert [answer.way for answer in answers] == list(WAYS)
    unexpected = {
        answer.way: answer.score
        for answer in answers
        if not is_expected(name, answer.way, answer.score)
    }
    assert unexpected == {}


def test_healthy_program_raises_no_alarm(tmp_path: Path) -> None:
    (answer,) = ask(PROGRAMS["ddp_join"], ["healthy"], tmp_path)
    assert (answer.score, answer.note[:13]) == ("quiet", "exit status 0")

"""How answers about the programs of the corpus are scored, and what is known of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.corpus.runner.command import KNOWN, failures
from tests.corpus.runner.job import SOURCES
from tests.corpus.runner.misses import MISSES, is_expected
from tests.corpus.runner.questions import WAYS
from tests.corpus.runner.score import FAIR, SCORES, score
from tests.corpus.runner.truth import PROGRAMS, Program
from tests.corpus.strangers.truth import PROGRAMS as STRANGERS
from tests.corpus.strangers.truth import STORIES
from tests.corpus.strangers2.truth import PROGRAMS as STRANGERS2
from tests.corpus.strangers2.truth import STORIES as STORIES2
from tests.corpus.strangers3.truth import PROGRAMS as STRANGERS3
from tests.corpus.strangers3.truth import STORIES as STORIES3
from tests.corpus.strangers4.truth import PROGRAMS as STRANGERS4
from tests.corpus.strangers4.truth import STORIES as STORIES4
from tests.corpus.strangers5.truth import PROGRAMS as STRANGERS5
from tests.corpus.strangers5.truth import STORIES as STORIES5
from tests.corpus.strangers6.truth import PROGRAMS as STRANGERS6
from tests.corpus.strangers6.truth import STORIES as STORIES6
from tests.corpus.strangers7.truth import PROGRAMS as STRANGERS7
from tests.corpus.strangers7.truth import STORIES as STORIES7
from tests.corpus.strangers8.truth import PROGRAMS as STRANGERS8
from tests.corpus.strangers8.truth import STORIES as STORIES8
from tests.corpus.strangers9.truth import PROGRAMS as STRANGERS9
from tests.corpus.strangers9.truth import STORIES as STORIES9
from tests.corpus.strangers10.truth import PROGRAMS as STRANGERS10
from tests.corpus.strangers10.truth import STORIES as STORIES10
from tests.corpus.strangers11.truth import PROGRAMS as STRANGERS11
from tests.corpus.strangers11.truth import STORIES as STORIES11
from tests.corpus.strangers12.truth import PROGRAMS as STRANGERS12
from tests.corpus.strangers12.truth import STORIES as STORIES12


def document(
    named: tuple[int, ...] = (),
    candidates: tuple[int, ...] = (),
    confidence: str = "likely",
    kind: str = "not_joined",
) -> dict[str, Any]:
    return {
        "status": "hung",
        "verdict": {
            "kind": kind,
            "confidence": confidence,
            "diverging_ranks": list(named),
            "candidate_ranks": list(candidates),
        },
    }


@pytest.mark.parametrize(
    "programs",
    [
        PROGRAMS,
        STRANGERS,
        STRANGERS2,
        STRANGERS3,
        STRANGERS4,
        STRANGERS5,
        STRANGERS6,
        STRANGERS7,
        STRANGERS8,
        STRANGERS9,
        STRANGERS10,
        STRANGERS11,
        STRANGERS12,
    ],
)
def test_each_program_has_a_truth(programs: dict[str, Program]) -> None:
    (folder,) = {program.folder for program in programs.values()}
    assert sorted(programs) == sorted(path.stem for path in (SOURCES / folder).glob("*.py"))


@pytest.mark.parametrize(
    ("programs", "stories"),
    [
        (STRANGERS, STORIES),
        (STRANGERS2, STORIES2),
        (STRANGERS3, STORIES3),
        (STRANGERS4, STORIES4),
        (STRANGERS5, STORIES5),
        (STRANGERS6, STORIES6),
        (STRANGERS7, STORIES7),
        (STRANGERS8, STORIES8),
        (STRANGERS9, STORIES9),
        (STRANGERS10, STORIES10),
        (STRANGERS11, STORIES11),
        (STRANGERS12, STORIES12),
    ],
)
def test_each_stranger_that_hangs_has_a_story(programs: Any, stories: Any) -> None:
    assert set(stories) == {name for name, program in programs.items() if program.hangs}


@pytest.mark.parametrize(
    "program",
    [
        *PROGRAMS.values(),
        *STRANGERS.values(),
        *STRANGERS2.values(),
        *STRANGERS3.values(),
        *STRANGERS4.values(),
        *STRANGERS5.values(),
        *STRANGERS6.values(),
        *STRANGERS7.values(),
        *STRANGERS8.values(),
        *STRANGERS9.values(),
        *STRANGERS10.values(),
        *STRANGERS11.values(),
        *STRANGERS12.values(),
    ],
    ids=lambda program: program.name,
)
def test_truth_speaks_of_ranks_of_the_job(program: Any) -> None:
    named = {*program.ranks, *program.undecided, *program.undecided_untraced, *program.busy}
    assert named <= set(range(program.world))
    for way in WAYS:
        assert {*program.ranks, *program.involved} <= program.fair(way) or not program.fair(way)


def test_late_rank_may_be_named_but_not_with_certainty() -> None:
    late = PROGRAMS["slow_preparation"]
    named = document((2,), kind="late") | {"status": "unknown"}
    assert score(named, late, "diagnose") == "right"
    assert score(document((2,)), late, "diagnose") == "right, other kind"
    assert score(document((2,), confidence="certain"), late, "diagnose") == "too certain"
    assert score(document((0,)), late, "diagnose") == "wrong rank"
    assert score({"status": "ok", "verdict": None}, late, "diagnose") == "quiet"


def test_of_several_causes_some_may_be_undecided() -> None:
    named = document((1, 4))["verdict"]

    def said(*candidates: int) -> str:
        causes = [named, document((), candidates)["verdict"]]
        answer = {"status": "hung", "verdict": {**named, "causes": causes}}
        return score(answer, STRANGERS2["three_faults"], "diagnose")

    assert said(2, 3) == "fairly undecided"
    assert said(0, 3) == "wrong rank"
    assert said() == "wrong rank"


def test_each_of_several_causes_has_to_be_right() -> None:
    program = STRANGERS["two_faults_tp"]

    def said(*causes: tuple[int, str]) -> str:
        answers = [
            document((rank,), confidence=confidence)["verdict"] for rank, confidence in causes
        ]
        return score(
            {"status": "hung", "verdict": {**answers[0], "causes": answers}}, program, "diagnose"
        )

    assert said((0, "likely")) == "wrong rank"
    assert said((4, "likely"), (0, "certain")) == "right"
    assert said((0, "likely"), (4, "likely"), (1, "likely")) == "wrong rank"
    assert said((0, "certain"), (4, "likely"), (1, "certain")) == "wrong and certain"


def test_ok_is_no_answer_to_a_rank_that_does_not_end() -> None:
    assert score({"status": "ok", "verdict": None}, PROGRAMS["exit_thread"], "attach") == "OK"


@pytest.mark.parametrize(
    ("candidates", "due"),
    [
        ((0, 2), "fairly undecided"),
        ((0, 1, 2), "fairly undecided"),
        ((0, 1), "undecided"),
        ((), "undecided"),
    ],
)
def test_undecided_verdict_holds_all_involved_ranks(candidates: Any, due: str) -> None:
    answer = document(candidates=candidates, confidence="ambiguous", kind="p2p_mismatch")
    assert score(answer, PROGRAMS["ring_odd_parity"], "attach") == due


def test_misses_are_answers_that_are_not_fair() -> None:
    for (name, way), miss in MISSES.items():
        assert name in KNOWN
        assert way in WAYS
        assert miss.score in SCORES
        assert miss.score not in FAIR


def test_mended_miss_fails_until_it_is_removed_from_the_list() -> None:
    name, way = next(iter(MISSES))
    assert is_expected(name, way, MISSES[name, way].score)
    assert not is_expected(name, way, "right")
    assert not is_expected(name, way, "wrong and certain")
    assert is_expected("mesh_extra_batch", "diagnose", "right")  # an answer that varies
    assert not is_expected("mesh_extra_batch", "diagnose", "wrong and certain")
    answer = {"program": name, "way": way, "score": "right", "said": ""}
    assert list(failures([answer])) == [f"{name} {way}: right; remove it from misses.py"]

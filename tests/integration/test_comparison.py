"""The comparison of tools: ncclscope's own columns, the analyzer's output, and the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.comparison import fr_trace
from tests.comparison.__main__ import MARK, cell, ncclscope_says, scores
from tests.comparison.ras import BY_DOCUMENTATION
from tests.comparison.scenarios import SCENARIOS, Scenario, Truth
from tests.comparison.score import Answer, Named, of_verdict, score
from tests.comparison.script import WORLD, Script

PAGE = Path(__file__).parents[2] / "docs" / "what-each-tool-says.md"
KINDS = {
    "op_mismatch size_mismatch dtype_mismatch redop_mismatch root_mismatch split_mismatch",
    "missing_call extra_call comm_swap order_cycle not_joined dead_rank p2p_mismatch",
    "capture_mismatch stalled group_order",
}


def by_name(name: str) -> Scenario:
    return next(scenario for scenario in SCENARIOS if scenario.name == name)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_ncclscope_is_right_wherever_it_is_recorded(scenario: Scenario, tmp_path: Path) -> None:
    rings, dumps = ncclscope_says(scenario, tmp_path)
    words = [score(answer, scenario.truth) for answer in (rings, dumps)]
    for word, recorded in zip(words, (True, scenario.in_dumps), strict=True):
        assert word == "right" if recorded else word in ("silent", "partly")
    cells = [cell(scores(answer, scenario.truth), answer) for answer in (rings, dumps)]
    assert f"| {scenario.title} | {' | '.join(cells)} |" in PAGE.read_text(), "make the page again"


@pytest.mark.parametrize("barrier", [False, True], ids=["", "after a barrier"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_it_is_right_where_completion_is_not_reported(
    scenario: Scenario, barrier: bool, tmp_path: Path
) -> None:
    script = Script(tells=False)
    if barrier:
        script.post(range(WORLD), "barrier")
    scenario.play(script)

    answer = of_verdict(script.verdict_of_rings(tmp_path))

    if scenario.truth is None or scenario.truth.kind == "stalled":
        assert answer.findings == ()  # a call that does not end looks like one that has ended
    else:
        assert answer.kind == scenario.truth.kind
        named = {rank for finding in answer.findings for rank in finding.ranks}
        assert named == {*scenario.truth.ranks} or not scenario.truth.ranks


def test_each_kind_has_a_scenario() -> None:
    planted = {scenario.truth.kind for scenario in SCENARIOS if scenario.truth}
    assert planted == {kind for line in KINDS for kind in line.split()}
    assert BY_DOCUMENTATION.keys() == {scenario.name for scenario in SCENARIOS}
    assert MARK in PAGE.read_text()


@pytest.mark.parametrize(
    ("answer", "truth", "word"),
    [
        (Answer(), None, "right"),
        (Answer((Named(frozenset({1}), 3),)), None, "wrong"),
        (Answer(refused="KeyError: 0"), None, "refuses"),
        (Answer(), Truth("not_joined", (1,), 3), "silent"),
        (Answer((Named(frozenset({1}), 3),)), Truth("not_joined", (1,), 3), "right"),
        (Answer((Named(frozenset({1}), 4),)), Truth("not_joined", (1,), 3), "partly"),
        (Answer((Named(frozenset({1, 2}), 3),)), Truth("not_joined", (1,), 3), "partly"),
        (Answer((Named(frozenset(), 3),)), Truth("not_joined", (1,), 3), "partly"),
        (Answer((Named(frozenset({2}), 3),)), Truth("not_joined", (1,), 3), "wrong"),
        (Answer((Named(frozenset(), 4),)), Truth("not_joined", (1,), 3), "wrong"),
        (Answer((Named(frozenset({1}), 3),), kind="stalled"), Truth("x", (1,), 3), "partly"),
        (Answer((Named(frozenset({0, 1}), 3),)), Truth("x", (), 3, (0, 1)), "right"),
    ],
)
def test_the_words_follow_from_what_was_planted(
    answer: Answer, truth: Truth | None, word: str
) -> None:
    assert score(answer, truth) == word


@pytest.mark.slow
def test_torchs_analyzer_is_run_and_read(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    tasks = []
    names = ("not_joined", "size_mismatch", "dead_rank", "healthy")
    for name in names:
        script = Script()
        by_name(name).play(script)
        directory = script.write_dumps(tmp_path / name)
        tasks += [fr_trace.Task(directory, order, bool(script.ended)) for order in fr_trace.ORDERS]
    tasks.append(fr_trace.Task(tmp_path / "dead_rank", fr_trace.ORDERS[0]))

    found = fr_trace.answers(tasks)

    assert found[0] == found[1] == Answer((Named(frozenset({1}), 7),))
    assert [answer.findings[0].seq for answer in found[2:4]] == [7, 7]
    assert found[4].findings[0] == Named(frozenset({2}))
    assert found[6:8] == [Answer(), Answer()]
    assert found[8].refused.startswith("AssertionError")

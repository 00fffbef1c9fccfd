"""The programs for one GPU: their truth, how answers are judged, and what is kept of a run."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from ncclscope.agents.kinds import KINDS
from tests.gpu.one_gpu.archive import Archive, unpack
from tests.gpu.one_gpu.judgement import call_of, judge
from tests.gpu.one_gpu.truth import FOLDER, MISTAKES

SKIPPED = MISTAKES["early_stop"]
LINE = min(SKIPPED.lines)


def _answer(**changes: Any) -> dict[str, Any]:
    site = f"{SKIPPED.name}.py:{LINE} main"
    call = {"op": "all_reduce", "site": "distributed.py:1 step", "user_site": site}
    verdict = {
        "kind": "missing_call",
        "diverging_ranks": [1],
        "candidate_ranks": [],
        "confidence": "certain",
        "comm": {"label": "world"},
        "seq": 17,
        "odd": None,
        "peers": call,
    }
    return {"status": "hung", "verdict": verdict | changes}


def test_each_program_has_a_truth_with_lines_and_known_kinds() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} - {"common"} == set(MISTAKES)
    for mistake in MISTAKES.values():
        ast.parse((FOLDER / f"{mistake.name}.py").read_text())
        assert mistake.lines
        assert set(mistake.kinds) <= set(KINDS)


@pytest.mark.parametrize(
    ("answer", "judged"),
    [
        (_answer(), "right"),
        (_answer(peers={"op": "all_reduce", "site": "other.py:20 main"}), "right, other line"),
        (_answer(peers={"op": "broadcast"}), "right, other call"),
        (_answer(kind="op_mismatch"), "right, other kind"),
        (_answer(diverging_ranks=[0], confidence="likely"), "wrong rank"),
        (_answer(diverging_ranks=[0]), "wrong and certain"),
        (_answer(diverging_ranks=[], candidate_ranks=[0, 1]), "undecided"),
        ({"status": "unknown", "verdict": None}, "unknown"),
        ({"status": "ok", "verdict": None}, "OK"),
        (None, "no answer"),
    ],
)
def test_an_answer_is_right_with_rank_kind_call_and_line(
    answer: dict[str, Any] | None, judged: str
) -> None:
    assert judge(answer, SKIPPED, 1) == judged


def test_a_healthy_run_is_quiet_unless_there_is_an_alarm() -> None:
    assert judge({"status": "ok", "verdict": None}, SKIPPED, None) == "quiet"
    assert judge(_answer(), SKIPPED, None) == "false alarm"


def test_the_call_of_a_verdict_is_its_communicator_number_and_operation() -> None:
    assert call_of(_answer()) == "world 17 all_reduce"
    assert call_of(None) == "- - -"


def test_an_archive_is_whole_after_each_run(tmp_path: Path) -> None:
    rings = tmp_path / "rings"
    rings.mkdir()
    (rings / "a.ring").write_bytes(bytes(100))
    archive = Archive(tmp_path, "runs")
    for run in ("one-1", "two-0"):
        archive.add(run, {"rings": rings, "absent": tmp_path / "absent"})
    found = dict(unpack(tmp_path, tmp_path / "unpacked"))
    assert list(found) == ["one-1", "two-0"]
    assert (found["two-0"] / "rings" / "a.ring").read_bytes() == bytes(100)

"""How an answer about a service is judged."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.services import acts
from tests.services.case import Truth, healthy
from tests.services.cases import CASES
from tests.services.score import judge

RANK = Truth("worker 1 left", kinds=("not_joined",), ranks=(1,), suspects=(0,))
SERVER = Truth("the server is frozen", kinds=("rpc_stalled",), process=("API server", "API server"))
RESTING = healthy("the service rests")
PIDS = {"API server": 7}


def document(
    status: str, summary: str = "", kind: str = "", ranks: tuple[int, ...] = (), **more: Any
) -> dict[str, Any]:
    cause = {
        "role": "cause",
        "kind": kind,
        "diverging_ranks": list(ranks),
        "candidate_ranks": [],
        "confidence": "likely",
        "evidence": [],
        **more,
    }
    return {"status": status, "summary": summary, "findings": [cause] if kind else []}


@pytest.mark.parametrize(
    ("truth", "said", "word"),
    [
        (RANK, document("hung", kind="not_joined", ranks=(1,)), "right"),
        (RANK, document("hung", kind="not_joined", ranks=(0,)), "fair"),
        (RANK, document("hung", kind="not_joined", ranks=(2,)), "wrong"),
        (RANK, document("hung", kind="not_scheduled"), "wrong"),
        (RANK, document("hung", kind="stalled", candidate_ranks=[0, 1]), "fair"),
        (RANK, document("hung", kind="not_joined", ranks=(1,), confidence="certain"), "wrong"),
        (RANK, document("unknown"), "unknown"),
        (RANK, document("ok"), "ok and hung"),
        (SERVER, document("hung", "pid 7 is frozen", "rpc_stalled"), "right"),
        (SERVER, document("unknown", "The API server is frozen"), "fair"),
        (SERVER, document("unknown", "pid 77 is frozen"), "unknown"),
        (RESTING, document("ok"), "right"),
        (RESTING, document("unknown"), "unknown"),
        (RESTING, document("hung", kind="stalled"), "false alarm"),
        (RESTING, document("unknown", kind="late", ranks=(1,)), "false alarm"),
        (RESTING, None, "no answer"),
    ],
)
def test_answer_is_judged_by_the_truth(
    truth: Truth, said: dict[str, Any] | None, word: str
) -> None:
    assert judge(said, truth, PIDS) == word


def test_killed_service_may_leave_less_evidence() -> None:
    assert judge(document("unknown"), RESTING, PIDS, killed=True) == "right"
    assert judge(document("hung", kind="stalled"), RESTING, PIDS, killed=True) == "false alarm"


def test_cases_have_a_truth_that_can_be_missed() -> None:
    for case in CASES.values():
        truths = [moment.truth for moment in case.moments] + [case.refused] * bool(case.refused)
        assert truths
        for truth in filter(None, truths):
            assert truth.is_healthy or judge(document("ok"), truth, PIDS) != "right"


def test_act_lasts_until_the_engine_has_run_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow engine still works when a fast one has long been at rest, so that nothing hangs."""
    rest = tmp_path / "rest0"
    done: list[str] = []
    rest.write_text("1")
    looked = iter(["1", "1", "2"])

    def pause(_: float) -> None:
        assert done == ["hold_output", "ask"]
        rest.write_text(next(looked))

    monkeypatch.setattr("tests.services.acts.time.sleep", pause)
    service: Any = SimpleNamespace(
        switch=tmp_path / "fault", plant=done.append, ask=lambda: done.append("ask")
    )

    acts.finish_with("hold_output")(service)

    assert done == ["hold_output", "ask"]
    assert next(looked, None) is None


def test_cases_whose_engine_has_made_all_tokens_wait_for_it() -> None:
    for name in ("answers_held", "engine_output_held"):
        assert "note_rest" in CASES[name].faults
        assert CASES[name].moments[0].act.__qualname__.startswith("finish_with")

"""Flight Recorder dumps of real gloo processes, each scenario against what is known of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.readers import open_run
from tests.integration.flight_recorder_truths import FAULTS, HEALTHY, play

OTHERS = ("lost_dump", "skip_of_equals")

# Some thirty programs run before the first test.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dumps of all scenarios."""
    pytest.importorskip("torch")
    directory = tmp_path_factory.mktemp("dumps")
    play(directory, [*HEALTHY, *FAULTS, *OTHERS], waited=(*FAULTS, *OTHERS))
    return directory


def verdict_of(dumps: Path, scenario: str) -> Verdict:
    return diagnose(open_run(dumps / scenario))


@pytest.mark.parametrize("scenario", HEALTHY)
def test_healthy_programs_are_called_so(dumps: Path, scenario: str) -> None:
    verdict = verdict_of(dumps, scenario)
    assert (verdict.status, verdict.findings) == ("ok", ())
    assert len(verdict.run.ranks) == 4


@pytest.mark.parametrize("scenario", FAULTS)
def test_the_verdict_names_what_the_program_did(dumps: Path, scenario: str) -> None:
    truth = FAULTS[scenario]
    verdict = verdict_of(dumps, scenario)
    cause = verdict.cause
    assert cause is not None
    assert cause.comm is not None
    if scenario == "pair_absent":  # ranks 0 and 1 miss rank 3 as well, in the world's call
        assert (cause.kind, cause.diverging_ranks) == (truth.kind, truth.ranks)
    else:
        found = (cause.kind, cause.diverging_ranks, cause.seq, cause.comm.label)
        assert found == (truth.kind, truth.ranks, truth.seq, truth.label)
    assert verdict.status == truth.status
    assert all(finding.role == "consequence" for finding in verdict.findings[2:])


def test_a_wrong_op_does_not_hide_an_absent_rank(dumps: Path) -> None:
    causes = [f for f in verdict_of(dumps, "absent_and_wrong").findings if f.role == "cause"]
    assert [(f.kind, f.diverging_ranks, f.seq) for f in causes] == [
        ("op_mismatch", (3,), 10),
        ("not_joined", (1,), 10),
    ]


def test_who_waits_in_the_world_for_a_pair_is_a_consequence(dumps: Path) -> None:
    findings = verdict_of(dumps, "pair_mismatch").findings
    assert [f.role for f in findings] == ["cause", "consequence"]
    assert findings[1].comm is not None
    assert findings[1].comm.label == "default_pg"


def test_a_lost_dump_of_a_finished_job_is_no_hang(dumps: Path) -> None:
    verdict = verdict_of(dumps, "lost_dump")
    assert (verdict.status, verdict.run.missing) == ("incomplete", (1,))


def test_a_skip_among_equal_calls_is_pinned_on_the_rank_that_skipped(dumps: Path) -> None:
    cause = verdict_of(dumps, "skip_of_equals").cause
    assert cause is not None
    assert cause.diverging_ranks == (2,)


def test_stacks_become_call_sites(dumps: Path) -> None:
    cause = verdict_of(dumps, "wrong_op").cause
    assert cause is not None
    assert cause.odd is not None
    assert cause.odd.site is not None
    assert cause.odd.site.startswith("flight_recorder_programs.py:")
    assert cause.odd.site.endswith(" reduce_to_one")


def test_members_that_gloo_does_not_write_are_inferred(dumps: Path) -> None:
    run = open_run(dumps / "healthy")
    members = {comm.label: comm.ranks for comm in run.communicators.values()}
    assert members == {"default_pg": (0, 1, 2, 3), "tp:0": (0, 1), "tp:1": (2, 3)}


def test_the_verdict_does_not_depend_on_the_order_of_files(dumps: Path) -> None:
    files = sorted((dumps / "wrong_op").glob("*rank*"))
    one, other = (diagnose(open_run(*order)) for order in (files, files[::-1]))
    assert one.cause == other.cause

"""Flight Recorder dumps of real gloo processes, each scenario against what is known of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from ncclscope.analysis.verdict import Verdict, diagnose
from ncclscope.sources import open_run

PROGRAM = Path(__file__).with_name("flight_recorder_programs.py")
HEALTHY = (
    "healthy",
    "healthy_json",
    "root_collectives",
    "running",
    "send_and_receive",
    "under_way",
    "uneven",
    "wrapped",
    "wrapped_away",
)


@dataclass(frozen=True)
class Truth:
    """What a scenario did.

    Attributes:
        kind: What its verdict should be.
        ranks: The ranks that did it.
        seq: Where.
        label: On which communicator.
        status: What the run should be called.
    """

    kind: str
    ranks: tuple[int, ...]
    seq: int
    label: str = "default_pg"
    status: str = "diverged"


FAULTS = {
    "absent": Truth("not_joined", (1,), 10, status="hung"),
    "absent_active": Truth("not_joined", (1,), 10, status="hung"),
    "absent_and_wrong": Truth("op_mismatch", (3,), 10),
    "circle": Truth("order_cycle", (3,), 4, status="hung"),
    "circle_of_pairs": Truth("order_cycle", (3,), 4, status="hung"),
    "extra": Truth("extra_call", (1,), 6),
    "killed": Truth("dead_rank", (2,), 10, status="hung"),
    "pair_absent": Truth("not_joined", (3,), 4, "tp:1", status="hung"),
    "pair_mismatch": Truth("op_mismatch", (3,), 4, "tp:1"),
    "skip": Truth("missing_call", (2,), 6),
    "swapped": Truth("comm_swap", (3,), 6, "ep:0"),
    "wrapped_wrong": Truth("op_mismatch", (0,), 21),
    "wrong_dtype": Truth("dtype_mismatch", (0,), 10),
    "wrong_op": Truth("op_mismatch", (3,), 10),
    "wrong_op_json": Truth("op_mismatch", (3,), 10),
    "wrong_size": Truth("size_mismatch", (3,), 10),
}
OTHERS = ("lost_dump", "skip_of_equals")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dumps of all scenarios; two processes play them, since most of the time is waiting."""
    pytest.importorskip("torch")
    directory = tmp_path_factory.mktemp("dumps")
    names = [*HEALTHY, *FAULTS, *OTHERS]
    environment = {key: value for key, value in os.environ.items() if "TORCH" not in key}
    players = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(directory), *names[part::2]],
            env=environment,
            stderr=subprocess.PIPE,
        )
        for part in range(2)
    ]
    try:
        deadline = time.monotonic() + 110
        said = [player.communicate(timeout=deadline - time.monotonic())[1] for player in players]
    finally:
        for player in players:
            player.kill()
    assert [player.returncode for player in players] == [0, 0], said
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

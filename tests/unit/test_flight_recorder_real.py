"""Dumps of real 16-rank Megatron jobs with injected faults; not part of this repository."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclscope.engine.verdict import diagnose
from ncclscope.export.flight_recorder import write_pickles
from ncclscope.export.jsonl import write_jsonl
from ncclscope.model import Run
from ncclscope.readers import open_run

SHARED = Path(os.environ.get("NCCLSCOPE_SHARED") or Path(__file__).parents[2].parent / "shared")
SETS = SHARED / "data" / "flight_recorder"

pytestmark = pytest.mark.skipif(
    not SETS.is_dir(), reason=f"needs the dumps in {SETS} (NCCLSCOPE_SHARED names another place)"
)


def injected(directory: Path) -> tuple[int, ...]:
    log = (directory / "fault_injection.log").read_text()
    found = re.search(r"Fault ranks: \[([\d, ]+)\]", log)
    assert found is not None
    return tuple(int(number) for number in found[1].split(","))


@pytest.mark.parametrize("name", ["gpu_error_1st", "lock_gil_1st"])
def test_the_one_cause_names_the_injected_ranks(name: str) -> None:
    verdict = diagnose(open_run(SETS / name))
    causes = [finding for finding in verdict.findings if finding.role == "cause"]
    assert verdict.status == "hung"
    assert [cause.diverging_ranks for cause in causes] == [injected(SETS / name)]
    assert causes[0].kind == "not_joined"


def test_the_log_beside_the_dumps_is_passed_over() -> None:
    run = open_run(SETS / "lock_gil_1st")
    assert (len(run.ranks), run.notes) == (16, ())


def test_two_runs_below_one_directory_are_not_mixed() -> None:
    run = open_run(SETS)
    assert len(run.ranks) == 16
    assert len({Path(rank.source).parent for rank in run.ranks}) == 1
    assert len(run.notes) == 1


def test_the_status_gives_the_position_of_a_rank_without_entries() -> None:
    run = open_run(SETS / "lock_gil_1st")
    (key,) = (k for k, c in run.communicators.items() if c.label == "EXPERT_MODEL_PARALLEL_GROUP:1")
    calls = {rank.rank: rank.logs[key].calls for rank in run.members(key)}
    assert calls == {rank: 45264 if rank in (9, 14) else 45267 for rank in range(8, 16)}


@pytest.mark.parametrize("write", [write_jsonl, write_pickles])
@pytest.mark.parametrize("name", ["gpu_error_1st", "lock_gil_1st"])
def test_what_is_exported_of_them_says_the_same(
    name: str, write: Callable[[Run, Path], None], tmp_path: Path
) -> None:
    write(open_run(SETS / name), tmp_path)

    verdict = diagnose(open_run(tmp_path))

    assert verdict.status == "hung"
    assert verdict.cause is not None
    assert verdict.cause.kind == "not_joined"
    assert verdict.cause.diverging_ranks == injected(SETS / name)

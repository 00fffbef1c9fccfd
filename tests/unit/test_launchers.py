"""How ranks ended, where only the program that started them knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ncclscope import Verdict, diagnose, open_run
from ncclscope.model import Rank, Run
from ncclscope.model.metadata import LAUNCHER, metadata_of, read_about, read_metadata
from ncclscope.readers import assemble
from ncclscope.readers.ring.ranks import read_ring
from ncclscope.tracing.launchers import record_ends
from tests.support.cluster import Cluster

SIZE = 3


def run_of(directory: Path, exited: Sequence[int] = ()) -> Run:
    """Return ranks that made three calls, and are gone; some have recorded an exit."""
    cluster = Cluster(directory, SIZE)
    cluster.history("world", 3)
    run = cluster.run(quiet=1.0)
    ranks = [replace(rank, alive=False, exited=rank.rank in exited) for rank in run.ranks]
    return replace(run, ranks=tuple(ranks))


def judged(
    directory: Path, run: Run, ends: Mapping[int, int], launcher: str = "torchrun"
) -> Verdict:
    """Return the verdict where a launcher recorded these ends, in a ring on the ranks' host."""
    rings = directory / "launcher"
    rings.mkdir()
    record_ends(rings, launcher, ends)
    (path,) = rings.glob("*.ring")
    other, rank = read_ring(path), run.ranks[0]
    names = ("boot_id", "pid_namespace", "run")
    about = {name: rank.details[name] for name in names if name in rank.details}
    details = {**{k: v for k, v in other.details.items() if k not in names}, **about}
    return diagnose(assemble([*run.ranks, replace(other, host=rank.host, details=details)]))


def pids(run: Run, *ranks: int) -> list[int]:
    return [run.by_rank[rank].pid for rank in ranks]


@pytest.mark.parametrize(
    ("status", "how"), [(-9, "SIGKILL"), (-40, "signal 40"), (3, "exit status 3")]
)
def test_a_rank_that_recorded_no_end_is_named(tmp_path: Path, status: int, how: str) -> None:
    run = run_of(tmp_path)
    verdict = judged(tmp_path, run, dict.fromkeys(pids(run, 1), status))

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("dead_rank", (1,))
    assert f"ended with {how}, as its launcher recorded" in verdict.summary


def test_several_that_ended_before_the_others_are_named(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    verdict = judged(tmp_path, run, dict.fromkeys(pids(run, 0, 2), -9))

    assert verdict.cause is not None
    assert verdict.cause.diverging_ranks == (0, 2)


def test_a_job_that_was_killed_as_a_whole_lost_no_rank(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    verdict = judged(tmp_path, run, dict.fromkeys(pids(run, *range(SIZE)), -9))

    assert (verdict.status, verdict.cause) == ("ok", None)


@pytest.mark.parametrize(("status", "how"), [(3, "exit status 3"), (-6, "SIGABRT")])
def test_an_exit_with_a_status_or_a_crash_is_no_normal_exit(
    tmp_path: Path, status: int, how: str
) -> None:
    run = run_of(tmp_path, exited=[1])
    verdict = judged(tmp_path, run, dict.fromkeys(pids(run, 1), status))

    assert verdict.status == "unknown"
    assert verdict.summary.startswith(f"Rank 1 ended with {how}.")


def test_a_program_that_failed_is_no_ok(tmp_path: Path) -> None:
    """The ranks that `ncclscope run` did not start itself have recorded nothing of it."""
    run = run_of(tmp_path, exited=range(SIZE))
    verdict = judged(tmp_path, run, {1: 1}, LAUNCHER)

    assert verdict.status == "unknown"
    assert verdict.summary.startswith(
        "The program ended with exit status 1, and no record shows why."
    )


def test_an_earlier_generation_of_ranks_is_a_remark(tmp_path: Path) -> None:
    run = run_of(tmp_path, exited=range(SIZE))
    verdict = judged(tmp_path, run, {1: -9})

    assert verdict.status == "ok"
    assert "torchrun started the ranks again after pid 1 ended with SIGKILL" in verdict.notes


@pytest.mark.parametrize("ends", [None, 7, {"1": "x"}, {"": 1}, {str(n): 1 for n in range(9999)}])
def test_what_a_ring_says_of_ends_is_validated(ends: object) -> None:
    assert "ends" not in read_about({"ends": ends, "exit_status": 3})
    assert "exit_status" not in read_about({"ends": ends, "exit_status": 3})


def test_a_trace_passes_them_on() -> None:
    details = {"launcher": "torchrun", "ends": {"12": -9}, "exit_status": -9}
    assert read_metadata(metadata_of(details)) == details


def test_without_room_nothing_is_recorded(tmp_path: Path) -> None:
    record_ends(tmp_path / "missing" / "deeper", "torchrun", {1: 1})


def test_the_ring_of_a_launcher_is_of_no_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    record_ends(tmp_path, "torchrun", {12: -9}, run="one")
    (path,) = tmp_path.glob("*.ring")
    found: Rank = read_ring(path)
    assert (found.rank, found.world_size, found.exited) == (-1, 0, True)
    assert (found.details["ends"], found.details["run"]) == ({"12": -9}, "one")
    assert open_run(path).ranks == ()

"""`ncclscope attach` on real processes that were never traced."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclscope import diagnose, open_run
from tests.integration.attach_programs import Job, job
from tests.support import fork_server
from tests.support.programs import ROOT

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(240)


def ncclscope(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(ROOT / part) for part in ("", "analyzers", "patches"))
    return fork_server.run(
        [sys.executable, "-m", "ncclscope", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "NCCL_RAS_ADDR": "127.0.0.1:1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def attach(running: Job, *arguments: object) -> dict[str, Any]:
    return attach_pids("--gap", "1", *arguments, *running.pids)


def attach_pids(*arguments: object) -> dict[str, Any]:
    done = ncclscope("attach", "--json", *arguments)
    assert done.returncode in (0, 1, 3), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    statuses = {"diverged": 1, "hung": 1, "unknown": 3}
    assert done.returncode == statuses.get(document["status"], 0)
    return document


def waits(document: dict[str, Any]) -> dict[int, str | None]:
    """Return what each rank waits for."""
    classes = document["stacks"]["classes"]
    assert all(one["condition"] == "still" for one in classes), document["stacks"]["processes"]
    return {rank: one["waits"] for one in classes for rank in one["ranks"]}


def wait_for_mismatch(running: Job, odd: tuple[int, ...]) -> None:
    running.wait_until(
        lambda rank, names: (
            names[:1] == ["all_gather" if rank in odd else "all_reduce"] and "main" in names
        )
    )


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A job whose rank 2 gathers while the others reduce, with a secret in its environment."""
    folder = tmp_path_factory.mktemp("hung")
    with job("other", folder, TORCH_NCCL_SECRET_PLACE="/home/alice") as running:
        wait_for_mismatch(running, (2,))
        yield running


def test_a_rank_in_another_collective_is_named_from_stacks_alone(hung: Job) -> None:
    document = attach(hung)
    verdict = document["verdict"]
    assert document["status"] == "diverged"
    assert verdict["kind"] == "op_mismatch"
    assert verdict["diverging_ranks"] == [2]
    assert verdict["confidence"] == "likely"
    assert verdict["odd"]["op"] == "all_gather"
    assert verdict["odd"]["site"].endswith("gather_step")
    assert verdict["peers"]["op"] == "all_reduce"
    assert verdict["comm"] is None
    assert document["ranks"] == {"expected": 4, "read": 4, "missing": []}
    evidence = {item["name"]: item for item in document["witnesses"]}
    assert evidence["stacks"]["ranks"] == [2]
    assert evidence["stacks"]["agrees"] is True
    assert not evidence["rings"]["available"]
    assert "ncclscope run" in evidence["rings"]["enable"]
    (root,) = document["stacks"]["tree"]
    assert root["ranks"] == root["still"] == [0, 1, 2, 3]


def test_a_bundle_is_diagnosed_elsewhere(hung: Job, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    first = attach(hung, "-o", bundle)
    (bundle / "verdict.json").write_text("{}")  # it is drawn again, not copied

    done = ncclscope("diagnose", bundle, "--json")
    screen = ncclscope("diagnose", bundle)

    assert done.returncode == screen.returncode == 1
    again = json.loads(done.stdout)
    assert again["verdict"] == first["verdict"]
    assert again["witnesses"] == first["witnesses"]
    assert "DIVERGED · op mismatch · rank 2" in screen.stdout
    assert oct(bundle.stat().st_mode)[-3:] == "700"


def test_a_redacted_bundle_gives_the_same_verdict(hung: Job, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    first = attach(hung, "--redact", "-o", bundle)

    text = "".join(path.read_text() for path in bundle.iterdir() if path.is_file())
    for secret in (
        str(tmp_path),
        str(hung.folder),
        "/home/alice",
        "site-packages",
        sys.executable,
        "WORLD_SIZE",
    ):
        assert secret not in text, secret
    again = json.loads(ncclscope("diagnose", bundle, "--json").stdout)
    assert again["verdict"]["diverging_ranks"] == first["verdict"]["diverging_ranks"] == [2]


@pytest.mark.slow
def test_two_against_two_are_candidates(tmp_path: Path) -> None:
    with job("halves", tmp_path) as running:
        wait_for_mismatch(running, (2, 3))
        verdict = attach(running)["verdict"]

    assert verdict["diverging_ranks"] == []
    assert verdict["candidate_ranks"] == [0, 1, 2, 3]
    assert verdict["confidence"] == "ambiguous"


@pytest.mark.slow
def test_a_rank_that_sleeps_has_not_joined(tmp_path: Path) -> None:
    with job("asleep", tmp_path) as running:
        running.wait_until(
            lambda rank, names: names[:1] == ["load_batch" if rank == 1 else "all_reduce"]
        )
        short = attach(running)
        document = attach_pids(*running.pids)

    (late,) = short["findings"]
    assert short["verdict"] is None, "a rank that is late looks the same"
    assert (late["role"], late["candidate_ranks"]) == ("latent", [1])
    assert "late" in late["summary"]
    verdict = document["verdict"]
    assert (document["status"], verdict["kind"]) == ("hung", "not_joined")
    assert (verdict["diverging_ranks"], verdict["confidence"]) == ([1], "likely")
    assert document["stacks"]["gap"] >= 10


@pytest.mark.slow
def test_a_slow_job_does_not_hang(tmp_path: Path) -> None:
    with job("slow", tmp_path, size=3) as running:
        running.wait_until(lambda rank, names: names[:1] == ["main" if rank == 1 else "all_reduce"])
        document = attach_pids(*running.pids)

    assert document["verdict"] is None
    assert document["status"] in ("ok", "unknown")


@pytest.mark.slow
def test_a_job_at_rest_is_no_hang_and_a_stopped_rank_that_nobody_waits_for_neither(
    tmp_path: Path,
) -> None:
    with job("rest", tmp_path, size=3) as running:
        running.wait_until(lambda rank, names: names[:1] == ["load_batch"])
        document = attach(running)
        os.kill(running.pids[1], signal.SIGSTOP)
        stopped = attach(running)

    assert document["verdict"] is None
    assert [(one["kind"], one["role"]) for one in document["findings"]] == [("stalled", "latent")]
    assert stopped["verdict"] is None
    assert [one["role"] for one in stopped["findings"]] == ["latent"]


@pytest.mark.slow
def test_what_a_rank_waits_for_is_read_off_its_process(tmp_path: Path) -> None:
    places = ["main", "open_fifo", "poll_for_a_file", "ask_a_stopped_server"]
    places += ["enter_a_held_lock", "lock_a_locked_file"]
    with job("places", tmp_path, size=6) as running:
        running.wait_until(lambda rank, names: places[rank] in names)
        document = attach(running)

    found = waits(document)
    assert found.pop(2) in ("poll", "sleep"), "it may have been asleep in all samples"
    assert found == {0: "collective", 1: "file", 3: "socket", 4: "lock", 5: "lock"}


@pytest.mark.slow
def test_a_rank_that_waits_for_its_data_loader_has_not_joined(tmp_path: Path) -> None:
    with job("batches", tmp_path, size=3) as running:
        running.wait_until(
            lambda rank, names: ("_try_get_data" if rank == 1 else "all_reduce") in names
        )
        children = [child for pid in running.pids for child in running.children(pid)]
        document = attach_pids(*running.pids, *children)

    assert len(children) == 3
    assert document["ranks"] == {"expected": 3, "read": 3, "missing": []}
    verdict = document["verdict"]
    assert (verdict["kind"], verdict["diverging_ranks"]) == ("not_joined", [1])
    assert "waits for its data loader" in verdict["summary"]
    assert waits(document)[1] == "data"


@pytest.mark.slow
def test_ranks_in_a_backward_of_ddp_wait_for_the_one_that_has_left_the_loop(
    tmp_path: Path,
) -> None:
    with job("ddp", tmp_path, size=3) as running:
        running.wait_until(
            lambda rank, names: ("barrier" if rank == 2 else "_engine_run_backward") in names
        )
        document = attach_pids(*running.pids)

    verdict = document["verdict"]
    assert (verdict["kind"], verdict["diverging_ranks"]) == ("op_mismatch", [2])
    assert verdict["confidence"] == "likely"
    assert waits(document) == dict.fromkeys(range(3), "collective")


@pytest.mark.slow
def test_a_rank_that_leaves_out_a_new_group_is_named(tmp_path: Path) -> None:
    """The others poll a store for it, a hundred times a second."""
    with job("group", tmp_path, size=3) as running:
        running.wait_until(
            lambda rank, names: ("all_reduce" if rank == 1 else "new_group") in names
        )
        document = attach_pids(*running.pids)

    assert document["verdict"]["diverging_ranks"] == [1]
    assert waits(document) == dict.fromkeys(range(3), "collective")


@pytest.mark.slow
def test_a_healthy_loop_is_ok_and_a_stopped_rank_of_it_is_named(tmp_path: Path) -> None:
    with job("healthy", tmp_path) as running:
        running.wait_until(
            lambda rank, names: "main" in names and "init_process_group" not in names
        )
        healthy = attach(running)
        assert (healthy["status"], healthy["findings"]) == ("ok", [])

        os.kill(running.pids[2], signal.SIGSTOP)
        deadline = time.monotonic() + 60
        while True:  # until the others have come to where they wait for it
            document = attach(running)
            if document["verdict"] or time.monotonic() > deadline:
                break

    verdict = document["verdict"]
    assert (verdict["kind"], verdict["diverging_ranks"]) == ("not_joined", [2])
    assert verdict["confidence"] == "likely"
    assert "stopped" in verdict["summary"]


@pytest.mark.slow
def test_eight_processes_take_less_than_five_seconds(tmp_path: Path) -> None:
    with job("healthy", tmp_path, size=8) as running:
        running.wait_until(lambda rank, names: "main" in names)
        began = time.monotonic()
        done = ncclscope("attach", "--gap", "0.5", *running.pids)
        took = time.monotonic() - began

    assert done.returncode == 0, done.stderr
    assert took < 5.5


def traced(rings: Path) -> dict[str, str]:
    """Return the environment of a job that records into a directory."""
    parts = ("ncclscope/tracing/bootstrap", "", "analyzers", "patches")
    path = os.pathsep.join(str(ROOT / part) for part in parts)
    return {"NCCLSCOPE_DIR": str(rings), "PYTHONPATH": path}


@pytest.mark.slow
def test_a_hang_that_the_rings_show_is_not_sampled_for_longer(tmp_path: Path, rings: Path) -> None:
    with job("asleep", tmp_path, **traced(rings)) as running:
        running.wait_until(
            lambda rank, names: ("load_batch" if rank == 1 else "all_reduce") in names[:6]
        )
        deadline = time.monotonic() + 60
        while diagnose(open_run(rings)).status != "hung":
            assert time.monotonic() < deadline
            time.sleep(0.5)
        document = attach_pids(*running.pids)

    verdict = document["verdict"]
    assert (document["status"], verdict["kind"]) == ("hung", "not_joined")
    assert (verdict["diverging_ranks"], verdict["confidence"]) == ([1], "likely")
    assert document["stacks"]["gap"] < 10


def test_a_traced_job_is_judged_by_its_rings(tmp_path: Path, rings: Path) -> None:
    bundle = tmp_path / "bundle"
    with job("other", tmp_path, **traced(rings)) as running:
        running.wait_until(
            lambda rank, names: ("all_gather" if rank == 2 else "all_reduce") in names[:6]
        )
        document = attach(running, "-o", bundle, "--redact")

    verdict = document["verdict"]
    assert (verdict["kind"], verdict["diverging_ranks"]) == ("op_mismatch", [2])
    assert verdict["confidence"] == "certain"
    assert verdict["seq"] == 6
    evidence = {item["name"]: item for item in document["witnesses"]}
    assert evidence["rings"]["available"]
    assert evidence["rings"]["agrees"] is True
    assert len(list((bundle / "rings").iterdir())) == 4
    assert str(rings) not in (bundle / "verdict.txt").read_text()
    assert str(rings) not in (bundle / "verdict.json").read_text()
    assert not any(
        b"job.py" in gzip.decompress(p.read_bytes())[:20_000] for p in (bundle / "rings").iterdir()
    )
    again = json.loads(ncclscope("diagnose", bundle, "--json").stdout)
    assert again["verdict"]["diverging_ranks"] == [2]
    assert again["verdict"]["confidence"] == "certain"


# --- what goes wrong --------------------------------------------------------------------------


def test_a_pid_that_is_none() -> None:
    done = ncclscope("attach", 2**22 + 1)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip() == (
        f"ncclscope: there is no process {2**22 + 1}; give the pids of running workers"
    )


def test_a_process_without_python_is_no_worker() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        done = ncclscope("attach", "--gap", "0", process.pid)
        process.kill()

    assert done.returncode == 2
    assert "nothing could be read of 1 worker" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_directory_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = ncclscope("attach", "-o", tmp_path, os.getpid())

    assert done.returncode == 2
    assert "is not empty" in done.stderr


@pytest.mark.parametrize("arguments", [("--gap", "-1"), ("--gap", "nan"), ("--redact",)])
def test_usage(arguments: tuple[str, ...]) -> None:
    done = ncclscope("attach", *arguments, os.getpid())

    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1

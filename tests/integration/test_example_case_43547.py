"""examples/case_43547: each claim in a short form, and that each would be seen to be wrong."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ncclscope import Verdict, diagnose, open_run
from ncclscope.model import Rank, Run
from tests.support.shared_memory import needs_shared_memory

EXAMPLE = Path(__file__).parents[2] / "examples" / "case_43547"
STEPS = 80


def run_script(name: str, *arguments: object, status: int = 0) -> str:
    command = [sys.executable, str(EXAMPLE / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


def read(rings: Path) -> Verdict:
    return diagnose(open_run(rings))


def calls(run: Run, rank: Rank) -> dict[str, int]:
    return {run.communicators[key].label: log.calls for key, log in rank.logs.items()}


@pytest.fixture(scope="module")
def dispatched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    directory = tmp_path_factory.mktemp("dispatched")
    return directory, run_script("same_collectives.py", directory, "--steps", STEPS)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    directory = tmp_path_factory.mktemp("served")
    return directory, run_script("zero_token_steps.py", directory, "--patience", 10)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is there")
@pytest.mark.parametrize(
    "name", ["same_collectives.py", "zero_token_steps.py", "unseen_all_reduces.py"]
)
def test_without_vllm_one_line_says_what_is_missing(name: str) -> None:
    output = run_script(name, status=2)

    assert output.count("\n") == 1
    assert "make test-vllm" in output


@pytest.mark.slow
def test_a_late_rank_looks_like_a_swap_in_a_window(tmp_path: Path) -> None:
    printed = run_script("window.py", tmp_path, "--lags", 258)

    row = next(line for line in printed.splitlines() if "258 calls" in line)
    assert re.findall(r"[+-]\d+", row) == ["-17", "+17", "-240", "-18"]
    assert "every row adds up to 10,000" in " ".join(printed.split())
    kept, whole = read(tmp_path / "windows-258"), read(tmp_path / "rings-258")
    assert kept.status == whole.status == "ok"
    late, peer = (
        {label: cell.calls for label, cell in row.cells.items()}
        for row in kept.table
        if row.rank.rank in (6, 7)
    )
    assert (late["dp:0"] - peer["dp:0"], late["tp:0"] - peer["tp:0"]) == (-17, 17)
    late, peer = (calls(whole.run, whole.run.by_rank[rank]) for rank in (6, 7))
    assert sum(peer.values()) - sum(late.values()) == 258


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_the_dispatcher_posts_the_same_whatever_is_routed(dispatched: tuple[Path, str]) -> None:
    directory, printed = dispatched

    assert "dispatcher: vllm.distributed.device_communicators.all2all.AgRsAll2All" in printed
    verdict = read(directory / "rings")
    assert verdict.status == "ok"
    assert len(verdict.run.ranks) == 4
    expected = {"dp:0/cpu": STEPS, "dp:0": 3 * STEPS, "ep:0": 4 * STEPS, "tp:0": 2 * STEPS}
    prints: dict[str, set[int]] = {}
    for rank in verdict.run.ranks:
        found = calls(verdict.run, rank)
        assert {label: found[label] for label in expected} == expected
        for key, log in rank.logs.items():
            label = verdict.run.communicators[key].label
            prints.setdefault(label, set()).add(log.fingerprint(log.calls))
    # The same for the whole deployment; on tp:0 each replica has batches of its own.
    assert {label: len(prints[label]) for label in expected} == dict.fromkeys(expected, 1) | {
        "tp:0": 2
    }
    without = [int(one) for one in re.findall(r"no token for its experts in (\d+) of", printed)]
    assert len(without) == 4
    assert min(without) > STEPS / 2, "the routing was lopsided"
    assert printed.count("The same calls in the same order") == 2


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_wrong_size_is_caught(dispatched: tuple[Path, str]) -> None:
    verdict = read(dispatched[0] / "wrong-size")

    cause = verdict.cause
    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("split_mismatch", (1,))
    assert cause.comm is not None
    assert (cause.comm.label, cause.seq) == ("ep:0", 4 * 32 + 1)
    assert cause.odd is not None
    assert cause.peers is not None
    assert (cause.odd.op, cause.peers.op) == ("all_gatherv", "all_gather")
    assert any("in step 33" in fact for fact in cause.evidence)


@pytest.mark.vllm
@pytest.mark.timeout(600)
@needs_shared_memory
def test_who_takes_an_all_reduce_is_asked_of_vllm(dispatched: tuple[Path, str]) -> None:
    printed = run_script("unseen_all_reduces.py", "--rings", dispatched[0] / "rings")

    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in printed.splitlines()
        if line.startswith("│")
    ]
    table = {row[0]: row[1:] for row in rows}
    assert table["[14, 2] float32"][1:] == ["custom", "custom", "pynccl"]
    assert table["[15, 2] float32"][1:] == ["pynccl", "pynccl", "pynccl"]
    assert table["[10733, 3072] bfloat16"][1:] == ["pynccl", "pynccl", "pynccl"]
    assert table["14"] == ["0 of 187", "0 of 187", "187 of 187"]
    assert table["1,366"] == ["125 of 187", "0 of 187", "187 of 187"]
    order = [
        printed.index(f"{name}(input_)")
        for name in ("custom_all_reduce", "symm_mem_comm.all_reduce")
    ]
    assert order == sorted(order)
    assert f"would have seen 0 of {4 * STEPS} on tp:0" in printed


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_stock_vllm_runs_a_dummy_batch_where_a_replica_has_no_tokens(
    served: tuple[Path, str],
) -> None:
    directory, printed = served

    assert "stock: hung in 0 of 1 runs" in printed
    verdict = read(directory / "stock-1" / "rings")
    assert verdict.status == "ok"
    busy, idle = (list(rank.steps) for rank in verdict.run.ranks)
    assert sum(not step.dummy for step in busy) == 6 * 12
    assert any(step.dummy for step in busy), "steps without tokens on the replica that serves"
    assert idle
    assert all(step.dummy for step in idle)
    (posted,) = set(re.findall(r"│ +(\d+ dp:0 all_gather,.*?) +│", printed))
    assert posted == "12 dp:0 all_gather, 4 dp:0 reduce_scatter, 1 dp:0/cpu all_reduce"


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_the_extra_dummy_run_hangs_and_worker_step_and_call_are_named(
    served: tuple[Path, str],
) -> None:
    directory, printed = served

    assert "changed: hung in 1 of 1 runs" in printed
    attached, diagnosed = printed.split("$ ncclscope attach")[1].split("$ ncclscope diagnose")
    for screen in (attached, diagnosed):
        assert "DIVERGED · missing call · one of ranks 0 1" in screen
        assert "belongs to step 12 (1 token) on rank 0, to step 13 (dummy) on" in screen
        assert re.search(r"engine 1 \(pid \d+\) waits in call \d+ on engines", screen)
    assert "DISAGREES" not in attached
    cause = read(directory / "changed-1" / "rings").cause
    assert cause is not None
    # Of two replicas nothing says which is short: one call too few there, or too many here.
    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("missing_call", (), 13)
    assert cause.candidate_ranks == (0, 1)
    assert cause.comm is not None
    assert (cause.comm.label, cause.comm.ranks) == ("dp:0/cpu", (0, 1))
    assert cause.confidence == "ambiguous"

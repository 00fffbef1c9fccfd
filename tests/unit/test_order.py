"""What came first follows from what ranks posted, not from the clocks of their hosts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

import ncclscope
from ncclscope.model import Call, Communicator
from ncclscope.model.log import made_before
from ncclscope.model.memory import ListLog

NOW = 1_795_165_653_367_456_915
HOUR = 3_600_000_000_000
WORLD = tuple(range(8))


class Job:
    """Eight ranks on two hosts, the clock of the second an hour off."""

    def __init__(self, skew: int) -> None:
        self.lines: list[list[dict[str, Any]]] = []
        for rank in WORLD:
            host = f"node-{rank // 4}"
            header = {"ncclscope_trace": 1, "rank": rank, "world_size": 8, "host": host, "pid": 9}
            self.lines.append([header])
        self.skew = skew
        self.ticks = 0

    def post(self, ranks: Iterable[int], members: tuple[int, ...], op: str, dtype: str) -> None:
        key = ",".join(map(str, members))
        for rank in ranks:
            self.ticks += 1
            skew = self.skew if rank >= 4 else 0
            if not any(line.get("comm") == key and "ranks" in line for line in self.lines[rank]):
                label = "world" if members == WORLD else "tp:0"
                comm = {"comm": key, "label": label, "ranks": members, "backend": "nccl"}
                self.lines[rank].append(comm)
            self.lines[rank].append(
                {
                    "call": op,
                    "comm": key,
                    "t_ns": NOW + self.ticks * 1_000_000 + skew,
                    "shape": [4],
                    "dtype": dtype,
                    "redop": "sum",
                }
            )

    def write(self, directory: Path, order: Iterable[int] = WORLD) -> list[Path]:
        directory.mkdir(exist_ok=True)
        paths = [directory / f"{rank}.jsonl" for rank in order]
        for path in paths:
            lines = self.lines[int(path.stem)]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return paths


def _two_errors(skew: int) -> Job:
    """Rank 2 errs in the third step, rank 6 in the fifth."""
    job = Job(skew)
    for step in range(8):
        for replica in (tuple(range(4)), tuple(range(4, 8))):
            for rank in replica:
                wrong = (rank, step) in ((2, 2), (6, 4))
                job.post([rank], replica, "all_reduce", "float16" if wrong else "float32")
        job.post(WORLD, WORLD, "all_reduce", "float32")
    return job


@pytest.mark.parametrize("skew", [0, HOUR, -HOUR])
def test_the_earlier_error_is_the_cause_whatever_the_clocks_say(tmp_path: Path, skew: int) -> None:
    _two_errors(skew).write(tmp_path)

    verdict = ncclscope.diagnose(ncclscope.open_run(tmp_path))

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("dtype_mismatch", (2,))
    assert verdict.cause.seq == 3
    assert {finding.diverging_ranks for finding in verdict.findings} == {(2,), (6,)}


def test_the_verdict_does_not_depend_on_the_order_of_files(tmp_path: Path) -> None:
    job = _two_errors(HOUR)
    verdicts = []
    for order in list(permutations(WORLD))[::5000]:
        paths = job.write(tmp_path, order)
        found = ncclscope.diagnose(ncclscope.open_run(*paths)).to_dict()
        verdicts.append(json.dumps(found, sort_keys=True))

    assert len(verdicts) > 5
    assert len(set(verdicts)) == 1


def test_calls_before_a_position_are_counted_with_those_not_kept() -> None:
    comm = Communicator(key="k")
    kept = [Call("barrier", "k", seq, position=10 * seq) for seq in range(5, 9)]
    log = ListLog(comm, kept)

    assert [made_before(log, position) for position in (0, 50, 51, 80, 1000)] == [4, 4, 5, 7, 8]

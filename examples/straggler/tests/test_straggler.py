"""The smallest run that triggers it, and near misses that must not."""

from __future__ import annotations

from pathlib import Path

import pytest
from ncclscope_straggler.analyzer import CALLS, LATE_SECONDS, Straggler

import ncclscope

MILLISECOND = 1_000_000


def findings(folder: Path, delays: list[float], hosts: tuple[str, str] = ("a", "a")):
    """Two ranks post the same calls; rank 1 each of them some seconds after rank 0."""
    for rank in range(2):
        with (folder / f"{rank}.jsonl").open("w") as file:
            print(f'{{"ncclscope_trace": 1, "rank": {rank}, "world_size": 2,', file=file, end="")
            print(f' "host": "{hosts[rank]}", "pid": {rank + 1}}}', file=file)
            print('{"comm": "k", "label": "tp:0", "ranks": [0, 1], "backend": "nccl"}', file=file)
            for number, delay in enumerate(delays):
                time = (1_000 + 1_000 * number) * MILLISECOND + int(rank * delay * 1e9)
                print(
                    f'{{"call": "all_reduce", "comm": "k", "t_ns": {time}, "shape": [4, 2],'
                    f' "dtype": "float32", "redop": "sum", "state": "completed"}}',
                    file=file,
                )
    verdict = ncclscope.diagnose(ncclscope.open_run(folder), analyzers=[Straggler()])
    assert verdict.status == "ok"  # late is not different
    return verdict.findings


def test_a_rank_that_is_always_late_is_named(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, [0.0] * 5 + [LATE_SECONDS * 1.5] * CALLS)

    assert (finding.kind, finding.role) == ("straggler", "latent")
    assert (finding.diverging_ranks, finding.seq) == ((1,), 6)


@pytest.mark.parametrize(
    "delays",
    [
        [LATE_SECONDS * 1.5] * (CALLS - 1),  # too few
        [LATE_SECONDS * 0.9] * CALLS * 2,  # too little
        [LATE_SECONDS * 1.5, -LATE_SECONDS] * CALLS,  # now the one, now the other
        [LATE_SECONDS * 9] + [0.001] * CALLS,  # one long pause
    ],
)
def test_a_rank_that_is_late_at_times_is_not(tmp_path: Path, delays: list[float]) -> None:
    assert findings(tmp_path, delays) == ()


def test_clocks_of_two_hosts_are_not_compared(tmp_path: Path) -> None:
    late = [LATE_SECONDS * 1.5] * CALLS
    assert findings(tmp_path, late, hosts=("a", "b")) == ()

"""The programs of tests/gpu/test_cuda_graphs.py where there is no GPU.

torch.distributed runs on torch's fake backend, which sends nothing, and torch's CUDA graphs are
replaced by a class with the same methods. What is patched, recorded and concluded is real.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ncclscope import diagnose, open_run
from tests.support import fork_server
from tests.support.programs import ROOT

pytest.importorskip("torch")

RANKS = 3

PROGRAM = """
import contextlib, sys
from ncclscope_patches import registry
from ncclscope_patches.probes import recording

registry.install_all()
import torch
import torch.distributed as dist
from torch.cuda import graphs
from torch.testing._internal.distributed.fake_pg import FakeStore
from ncclscope_patches.probes.cuda_graphs import CudaGraphProbe
from tests.gpu import graph_programs

capturing = False

class CUDAGraph:
    def capture_begin(self, **kwargs):
        global capturing
        capturing = True

    def capture_end(self):
        global capturing
        capturing = False

    def replay(self): ...

    def reset(self): ...

@contextlib.contextmanager
def graph(of, **kwargs):
    of.capture_begin(**kwargs)
    yield
    of.capture_end()

assert hasattr(graphs.CUDAGraph.replay, "__ncclscope_patch__"), "torch's own is patched as well"
graphs.CUDAGraph = torch.cuda.CUDAGraph = CUDAGraph
probe = CudaGraphProbe()
probe.apply()
torch.cuda.graph, torch.cuda.synchronize = graph, lambda: None
torch.version.cuda = "13.0"  # groups of a CPU build are never asked
recording.is_capturing = lambda: capturing
graph_programs.DEVICE = "cpu"
rank, ranks, task = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
if task == "agree":
    graph_programs.agree(rank, [4] + [1] * (ranks - 1), 6)
else:
    graph_programs.differ(rank, task)
"""


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("agree", None),
        ("swapped", ("op_mismatch", 5)),
        ("other graph", ("capture_mismatch", 1)),
        ("eager", ("capture_mismatch", 1)),
    ],
)
def test_what_the_programs_record(rings: Path, task: str, expected: tuple[str, int] | None) -> None:
    for rank in range(RANKS):
        done = fork_server.run(
            [sys.executable, "-c", PROGRAM, str(rank), str(RANKS), task],
            env={**os.environ, "NCCLSCOPE_DIR": str(rings)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr

    verdict = diagnose(open_run(rings))

    if expected is None:
        assert verdict.status == "ok"
        assert [len(rank.graphs) for rank in verdict.run.ranks] == [8, 2, 2]
        (log,) = verdict.run.ranks[0].logs.values()
        calls = log.span(1, log.calls + 1)
        assert sum(call.replay is not None for call in calls) == 7 * 8
        assert not any(call.captured for call in calls)
        return
    cause = verdict.cause
    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == (expected[0], (1,))
    assert cause.peers is not None
    assert cause.peers.replay is not None
    assert (cause.peers.replay.call, cause.peers.replay.calls) == (expected[1], 8)

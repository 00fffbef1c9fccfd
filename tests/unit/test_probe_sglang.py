"""SGLang's own groups and NCCL binding, between real processes, and what is recorded of them.

`GroupCoordinator` runs over gloo, and `PyNcclCommunicator` over tests/integration/nccl_stand_in.c,
which moves no data. `ModelRunner` needs a GPU's kernels: a class with its method takes its place,
and its source is held against what the probe reads.
"""

from __future__ import annotations

import ast
import contextlib
import os
import subprocess
import sys
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ncclscope.engine.verdict import diagnose
from ncclscope.model import Run
from tests.integration.c10d_ranks import ROOT, calls, fields, join, main, messages, run_ranks

pytest.importorskip("sglang")

RUNNER = "sglang.srt.model_executor.model_runner"
STEPS, FAULTY_STEP = 6, 4


class Mode(Enum):
    IDLE = 0
    DECODE = 1

    def is_idle(self) -> bool:
        return self is Mode.IDLE


def make_group(rank: int, pynccl: bool = False) -> Any:
    from sglang.srt.distributed import parallel_state

    return parallel_state.init_model_parallel_group(
        [list(range(int(os.environ["WORLD_SIZE"])))], rank, "gloo", group_name="tp",
        use_pynccl=pynccl, use_custom_allreduce=False, use_mscclpp=False,
        use_torch_symm_mem_allreduce=False,
    )  # fmt: skip


def serve(rank: int) -> None:
    """Forward passes on three ranks; with FAULT, rank 1 decides otherwise in one of them."""
    import torch

    join()
    group = make_group(rank)
    module = ModuleType(RUNNER)

    class ModelRunner:
        def forward(self, forward_batch: Any) -> None:
            rows = torch.ones(4, 2)
            if "FAULT" in os.environ and (rank, forward_batch.number) == (1, FAULTY_STEP):
                group.all_gather(rows)
            else:
                group.all_reduce(rows)

    module.ModelRunner = ModelRunner  # type: ignore[attr-defined]
    sys.modules[RUNNER] = module
    from ncclscope_patches.engines.sglang import SglangSteps

    SglangSteps().apply()
    for number in range(1, STEPS + 1):
        idle = number == STEPS
        ModelRunner().forward(
            SimpleNamespace(
                number=number,
                forward_mode=Mode.IDLE if idle else Mode.DECODE,
                input_ids=torch.zeros(0 if idle else 3, dtype=torch.int64),
            )
        )


def connect(rank: int) -> None:
    import torch
    from sglang.srt.distributed.device_communicators import pynccl

    class Stream:
        cuda_stream = 0

        def synchronize(self) -> None:
            pass

    pynccl.get_current_device_stream_fast = Stream
    torch.cuda.Stream = Stream
    torch.cuda.device = torch.cuda.stream = contextlib.nullcontext
    join()
    comm = make_group(rank, pynccl=True).pynccl_comm
    comm.all_reduce(torch.ones(99))  # disabled: it enqueues nothing
    with comm.change_state(enable=True):
        comm.all_reduce(torch.ones(4, 2))
        comm.outplace_all_reduce(torch.ones(3))
        comm.all_gather(torch.ones(4), torch.ones(2))
        comm.all_gather(torch.ones(5), torch.ones(2 + rank), sizes=[2, 3])
        comm.reduce_scatter(torch.ones(2), torch.ones(4))
        comm.reduce_scatter(torch.ones(2 + rank), torch.ones(5), sizes=[2, 3])
        comm.all_to_all_single(torch.ones(4), torch.ones(4))
        comm.broadcast(torch.ones(2), src=1)
        comm.send(torch.ones(6), dst=1 - rank)
        comm.recv(torch.ones(6), 1 - rank)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("nccl") / "libnccl_stand_in.so"
    source = ROOT / "tests" / "integration" / "nccl_stand_in.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    return str(path)


@pytest.fixture(scope="module")
def connected(tmp_path_factory: pytest.TempPathFactory, library: str) -> Run:
    rings = tmp_path_factory.mktemp("connected")
    return run_ranks(__file__, "connect", rings, environment={"SGLANG_NCCL_SO_PATH": library})


def run_serving(rings: Path, timeout: float = 100, **environment: str) -> Run:
    return run_ranks(__file__, "serve", rings, size=3, environment=environment, timeout=timeout)


def test_groups_have_sglangs_names(connected: Run) -> None:
    named = {(comm.label, comm.backend) for comm in connected.communicators.values()}
    assert {("tp:0", "gloo"), ("tp:0/cpu", "gloo"), ("tp:0/pynccl", "nccl")} <= named


@pytest.mark.parametrize("rank", [0, 1])
def test_each_method_of_the_binding_is_recorded_once(connected: Run, rank: int) -> None:
    recorded = calls(connected.by_rank[rank], "tp:0/pynccl")

    assert [fields(call, "op", "shape", "redop", "root", "sizes") for call in recorded] == [
        ("all_reduce", (1,), "sum", None, None),  # its warm-up
        ("all_reduce", (4, 2), "sum", None, None),
        ("all_reduce", (3,), "sum", None, None),
        ("all_gather", (2,), None, None, None),
        ("all_gatherv", (2 + rank,), None, None, (2, 3)),
        ("reduce_scatter", (4,), "sum", None, None),
        ("reduce_scatterv", (5,), "sum", None, (2, 3)),
        ("all_to_all", (4,), None, None, None),
        ("broadcast", (2,), None, 1, None),
    ]
    sent = messages(connected.by_rank[rank], "tp:0/pynccl")
    assert [fields(call, "op", "shape", "peer") for call in sent] == [
        ("send", (6,), 1 - rank),
        ("recv", (6,), 1 - rank),
    ]
    assert connected.by_rank[rank].activities["comm_init"].until_ns is not None
    assert "probe_failed" not in connected.by_rank[rank].details


def test_forward_passes_are_steps(rings: Path) -> None:
    run = run_serving(rings)

    assert diagnose(run).status == "ok"
    for rank in run.ranks:
        assert [(step.number, step.tokens, step.dummy) for step in rank.steps] == [
            *((number, 3, False) for number in range(1, STEPS)),
            (STEPS, 0, True),
        ]


def test_decision_of_one_rank_is_named_with_group_and_step(rings: Path) -> None:
    # Whether gloo notices depends on which messages meet; the ranks fail or hang.
    with pytest.raises((AssertionError, subprocess.TimeoutExpired)):
        run_serving(rings, timeout=30, FAULT="1")
    from ncclscope import open_run

    verdict = diagnose(open_run(rings))

    assert verdict.cause is not None
    assert verdict.cause.diverging_ranks == (1,)
    assert verdict.cause.comm is not None
    assert (verdict.cause.kind, verdict.cause.comm.label) == ("op_mismatch", "tp:0")
    assert any(f"step {FAULTY_STEP}" in line for line in verdict.cause.evidence)


def test_sources_have_what_the_probe_of_steps_reads() -> None:
    runner, batch = (
        _class(f"{module.replace('.', '/')}.py", name)
        for module, name in (
            ("srt.model_executor.model_runner", "ModelRunner"),
            ("srt.model_executor.forward_batch_info", "ForwardBatch"),
        )
    )
    (forward,) = (
        node for node in runner.body if isinstance(node, ast.FunctionDef) and node.name == "forward"
    )
    assert [one.arg for one in forward.args.args][:2] == ["self", "forward_batch"]
    declared = {
        node.target.id
        for node in batch.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert {"forward_mode", "input_ids"} <= declared


def _class(path: str, name: str) -> ast.ClassDef:
    spec = find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / path).read_text("utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return found


if __name__ == "__main__":
    main(globals())

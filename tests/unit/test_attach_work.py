"""What keeps a rank busy, by its stack."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ncclscope.engine.processes.motion import read_motions
from ncclscope.engine.processes.stack_verdict import judge_stacks
from ncclscope.engine.processes.work import work_of
from ncclscope.model.snapshot import Stacks, Thread
from tests.support.snapshots import in_collective, snapshot, stack, worker

PROGRAM = ("train.py:1 <module>", "train.py:33 step")
DYNAMO = "torch/_dynamo/convert_frame.py:1640 _compile"
INDUCTOR = "torch/_inductor/compile_fx.py:900 compile_fx_inner"
STACKS = {
    "torch.compile": (DYNAMO, "torch/_dynamo/symbolic_convert.py:900 step", INDUCTOR),
    "autotuning": (
        DYNAMO,
        INDUCTOR,
        "torch/_inductor/runtime/triton_heuristics.py:800 benchmark_all_configs",
        "triton/testing.py:149 do_bench",
    ),
    "Triton's compiler": (
        "triton/runtime/jit.py:560 run",
        "triton/runtime/jit.py:700 _do_compile",
        "triton/compiler/compiler.py:300 compile",
    ),
    "the compiler of an extension": (
        "torch/utils/cpp_extension.py:1500 load",
        "torch/utils/cpp_extension.py:2200 _run_ninja_build",
        "subprocess.py:500 run",
    ),
    "a download": (
        "transformers/modeling_utils.py:4000 from_pretrained",
        "huggingface_hub/file_download.py:400 http_get",
        "ssl.py:1200 read",
    ),
    "loading weights": (
        "vllm/model_executor/model_loader/default_loader.py:300 load_weights",
        "safetensors/torch.py:381 load_file",
    ),
}


@pytest.mark.parametrize("work", STACKS)
def test_work_is_recognised_below_the_line_of_the_program(work: str) -> None:
    one = worker(3, stack(*PROGRAM, *STACKS[work]), cpu=1.0)
    motion = read_motions(snapshot([worker(0, in_collective("all_reduce", 5)), one]))[3]

    assert motion.work == work
    assert motion.text.startswith(f"{work} at train.py:33 step")


@pytest.mark.parametrize(
    "frames",
    [
        (
            "torch/_dynamo/eval_frame.py:800 compile_wrapper",
            "model.py:9 forward",
        ),  # a compiled one runs
        ("torch/_inductor/output_code.py:600 __call__",),
        ("triton/runtime/autotuner.py:200 run", "model.py:7 kernel"),
        ("json/__init__.py:300 loads",),
    ],
)
def test_running_what_was_compiled_is_no_work_of_that_kind(frames: tuple[str, ...]) -> None:
    assert work_of(stack(*PROGRAM, *frames)) is None


def test_the_verdict_on_a_compiling_rank_says_what_its_peers_wait_for() -> None:
    busy = worker(3, stack(*PROGRAM, *STACKS["torch.compile"]), cpu=30.0)
    peers = [worker(rank, in_collective("all_reduce", 40)) for rank in range(3)]
    (found,) = judge_stacks(list(read_motions(snapshot([*peers, busy], 30.0)).values()), 30.0)

    assert (found.kind, found.diverging_ranks) == ("late", (3,))
    assert "Rank 3 is in torch.compile at train.py:33 step" in found.summary
    assert "endless loop" not in found.summary


def test_a_thread_in_the_program_is_named_where_the_main_thread_waits_for_a_lock() -> None:
    """As where the future of an asynchronous checkpoint never has a result."""
    future = stack("concurrent/futures/_base.py:451 result", "threading.py:327 wait")
    waiting = worker(1, (*stack(*PROGRAM), *future))
    (main,) = waiting.stacks[-1].threads
    saves = replace(stack("train.py:6 write_data")[0], installed=False)
    busy = Thread("saver_0", 7, (*stack("threading.py:982 run"), saves))
    rests = Thread("ncclscope-beat", 8, stack("threading.py:331 wait"))

    def text(*threads: Thread) -> str:
        one = replace(waiting, stacks=(Stacks(threads),) * 2)
        return read_motions(snapshot([one, worker(0, in_collective("all_reduce", 5))]))[1].text

    assert text(busy, rests, main).endswith(
        "(waits for a lock; its thread saver_0 is at train.py:6 write_data)"
    )
    assert text(rests, main).endswith("(waits for a lock)")
    assert text(busy, replace(busy, name="saver_1"), main).endswith("(waits for a lock)")

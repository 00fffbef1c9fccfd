"""Cases in which a worker is at fault."""

from __future__ import annotations

import os

from tests.integration.tiny_moe import write_adapter
from tests.integration.vllm_server import TINY_QWEN3_MOE
from tests.services.acts import Act, ask, ask_with, nothing, stop
from tests.services.case import LASTS_SECONDS, Case, Moment, Truth, healthy
from tests.services.service import Service

__all__ = ["CASES"]

CORES = {
    "VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, sorted(os.sched_getaffinity(0))[:2])),
}
# vLLM 0.32 on the CPU makes the buffers between stages when it compiles the model, and else fails.
PIPELINE = {
    "tensor_parallel_size": 1,
    "eager": False,
    "arguments": ["--pipeline-parallel-size", "2"],
}
ALONE = {"tensor_parallel_size": 1}
WEIGHTS = {"arguments": ["--worker-extension-cls", "ncclscope_test_service.Weights"]}
NGRAM = {
    "arguments": [
        "--speculative-config",
        '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}',
    ]
}
DENSE: dict[str, object] = {
    **TINY_QWEN3_MOE,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
}
ADAPTERS = {"arguments": ["--enable-lora", "--max-lora-rank", "8"], "config": DENSE}
RPC_SECONDS = 4.0
STEP_SECONDS = 6
_ABSENT = ("not_joined", "missing_call", "p2p_mismatch")


def _hold_rpc(service: Service) -> None:
    service.plant("hold_rpc")
    service.post("/collective_rpc", {"method": "check_health"})


def _hold_rpc_for_seconds(service: Service) -> None:
    service.plant("hold_rpc")
    service.post("/collective_rpc", {"method": "check_health", "timeout": RPC_SECONDS})


def _load_adapter(service: Service) -> None:
    adapter = service.switch.with_name("adapter")
    write_adapter(adapter, DENSE)
    service.plant("hold_adapter")
    service.post("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": str(adapter)})


def _update_weights(ranks: str) -> Act:
    def act(service: Service) -> None:
        service.post("/collective_rpc", {"method": "receive_weights", "args": [ranks]})

    return act


def _stopped(rank: int) -> list[Moment]:
    title = f"Worker_TP{rank}" if rank else "Worker"
    process = (title, rf"rank {rank}\b.*stopped|worker.*stopped")
    idle = f"SIGSTOP stopped worker {rank}; no request is open, and the next one will hang"
    busy = f"SIGSTOP stopped worker {rank}, and a request waits for it"
    kinds = ("rpc_stalled", "not_joined", "stalled")
    return [
        Moment(
            Truth(
                idle,
                ("unknown", "hung"),
                kinds,
                (rank,),
                process=process,
                killed=("unknown", "ok"),
                waits=False,
            ),
            stop(title),
            "idle",
        ),
        Moment(
            Truth(busy, ("hung",), kinds, (rank,), process=process, confidence="certain"),
            ask,
            "busy",
        ),
    ]


CASES = [
    Case(
        "reply_lost",
        [
            Moment(
                Truth(
                    "worker 0 has run the step, and its answer never reached the engine",
                    kinds=("rpc_stalled",),
                    ranks=(0,),
                ),
                ask_with("lose_reply"),
            )
        ],
    ),
    Case(
        "rpc_lock",
        [
            Moment(
                Truth(
                    "worker 1 waits for a file's lock in check_health, and the engine for worker 1",
                    kinds=("rpc_stalled",),
                    ranks=(1,),
                ),
                _hold_rpc,
            )
        ],
    ),
    Case(
        "rpc_timed_out",
        [
            Moment(
                Truth(
                    "worker 1 waits for a file's lock in check_health; the engine has given it up "
                    "after its timeout and waits for requests, and the next one will hang",
                    ("unknown", "hung"),
                    kinds=("rpc_stalled",),
                    ranks=(1,),
                    waits=False,
                ),
                _hold_rpc_for_seconds,
                "idle",
                LASTS_SECONDS + RPC_SECONDS,
            ),
            Moment(
                Truth(
                    "worker 1 still waits for that lock; worker 0 runs a step without it",
                    kinds=(*_ABSENT, "rpc_stalled"),
                    ranks=(1,),
                    confidence="certain",
                ),
                ask,
                "busy",
            ),
        ],
    ),
    Case(
        "adapter_lock",
        [
            Moment(
                Truth(
                    "worker 1 waits for a lock of its own before it loads an adapter, and the "
                    "engine for worker 1",
                    kinds=("rpc_stalled",),
                    ranks=(1,),
                ),
                _load_adapter,
            )
        ],
        ADAPTERS,
        {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"},
        faults=["hold_adapter"],
    ),
    Case(
        "step_timed_out",
        [
            Moment(
                Truth(
                    "worker 1 waits for a file's lock before a step; the engine gave the step up "
                    "after its timeout, and ended with the whole service",
                    ("hung", "diverged", "unknown"),
                    kinds=("dead_rank", "rpc_stalled", *_ABSENT),
                    ranks=(1,),
                    process=("EngineCore", r"engine 0.*TimeoutError"),
                    confidence="certain",
                    waits=False,
                ),
                ask_with("hold_step"),
            )
        ],
        environment={"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(STEP_SECONDS)},
        faults=["hold_step"],
    ),
    Case("worker_stopped", _stopped(1)),
    Case("only_worker_stopped", _stopped(0), ALONE),
    Case(
        "pp2_receive_held",
        [
            Moment(
                Truth(
                    "worker 1, the last stage, waits for a file's lock before it receives",
                    kinds=(*_ABSENT, "rpc_stalled"),
                    ranks=(1,),
                    confidence="certain",
                ),
                ask_with("hold_receive"),
            )
        ],
        PIPELINE,
        CORES,
        faults=["hold_receive"],
    ),
    Case(
        "pp2_send_skipped",
        [
            Moment(
                Truth(
                    "worker 0, the first stage, leaves out its send; worker 1 waits in the receive",
                    kinds=_ABSENT,
                    ranks=(0,),
                    confidence="certain",
                ),
                ask_with("skip_send"),
            )
        ],
        PIPELINE,
        CORES,
        faults=["skip_send"],
    ),
    Case(
        "pp2_healthy",
        [
            Moment(healthy("a pipeline of two stages serves requests"), ask, "busy", 0.5),
            Moment(healthy("a pipeline of two stages rests"), nothing, "idle"),
        ],
        PIPELINE,
        CORES,
    ),
    Case(
        "weights_one_rank",
        [
            Moment(
                Truth(
                    "worker 0 waits in a broadcast of weights that worker 1 does not join",
                    kinds=(*_ABSENT, "rpc_stalled", "extra_call"),
                    ranks=(1,),
                    suspects=(0,),
                ),
                _update_weights("0"),
            )
        ],
        WEIGHTS,
    ),
    Case(
        "weights_all_ranks",
        [Moment(healthy("all workers have joined a broadcast of weights"), _update_weights("0,1"))],
        WEIGHTS,
    ),
    Case(
        "spec_decode_skip",
        [
            Moment(healthy("ngram speculation serves requests"), ask, "healthy", 2.0),
            Moment(
                Truth(
                    "worker 1 skipped one all_reduce of tensor parallelism",
                    ("hung", "diverged"),
                    ("missing_call", "size_mismatch", "op_mismatch", "not_joined"),
                    ranks=(1,),
                    suspects=(0,),
                    confidence="certain",
                ),
                ask_with("skip"),
                "skip",
            ),
        ],
        NGRAM,
    ),
]

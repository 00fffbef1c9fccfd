"""Cases of an engine that runs its only worker itself, as it does on a host with one GPU."""

from __future__ import annotations

import signal

from tests.integration.moe_serving import ARGUMENTS, CPU_MOE
from tests.services.acts import ask_with, nothing
from tests.services.case import Case, Moment, Truth, healthy
from tests.services.service import Service

__all__ = ["CASES"]

UNI = ["--distributed-executor-backend", "uni"]
ALONE: dict[str, object] = {"tensor_parallel_size": 1, "arguments": UNI}
REPLICAS: dict[str, object] = {
    "tensor_parallel_size": 1,
    "data_parallel_size": 2,
    "arguments": [*ARGUMENTS, *UNI],
}
# vLLM's CPU build gives a server's worker a process of its own, unless this variable is 0.
INSIDE = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
ENGINE = "EngineCore"
_KINDS = ("rpc_stalled", "stalled", "not_joined")


def _check(service: Service) -> None:
    service.plant("hold_check")
    service.post("/collective_rpc", {"method": "check_health"})


def _stop(service: Service) -> None:
    service.signal(ENGINE, signal.SIGSTOP)
    service.ask()


def _kill(service: Service) -> None:
    service.ask()
    service.signal(ENGINE, signal.SIGKILL)


def _load(service: Service) -> None:
    service.load(4, 20.0, tokens=60)


CASES = [
    Case(
        "solo_healthy",
        [
            Moment(healthy("an engine with its worker inside rests"), nothing, "idle"),
            Moment(healthy("it serves four clients"), _load, "busy", 8.0),
            Moment(healthy("nobody has asked for half a minute"), nothing, "again", 50.0),
        ],
        ALONE,
        INSIDE,
    ),
    Case(
        "solo_step_held",
        [
            Moment(
                Truth(
                    "the engine runs its worker itself, which waits for a file's lock before its "
                    "next step",
                    kinds=_KINDS,
                    ranks=(0,),
                    confidence="certain",
                ),
                ask_with("hold_step"),
            )
        ],
        ALONE,
        INSIDE,
        faults=["hold_step"],
    ),
    Case(
        "solo_rpc_held",
        [
            Moment(
                Truth(
                    "the engine runs check_health of its worker, which waits for a file's lock",
                    kinds=_KINDS,
                    ranks=(0,),
                    confidence="certain",
                ),
                _check,
            )
        ],
        ALONE,
        INSIDE,
        faults=["hold_check"],
    ),
    Case(
        "solo_stopped",
        [
            Moment(
                Truth(
                    "SIGSTOP stopped the engine, in which the worker runs, and a request waits",
                    kinds=_KINDS,
                    ranks=(0,),
                    process=(ENGINE, r"rank 0\b.*stopped|engine.*stopped"),
                    confidence="certain",
                ),
                _stop,
            )
        ],
        ALONE,
        INSIDE,
    ),
    Case(
        "solo_killed",
        [
            Moment(
                Truth(
                    "SIGKILL ended the engine, in which the worker runs, and the server after it",
                    ("hung", "diverged"),
                    kinds=("dead_rank",),
                    ranks=(0,),
                    process=(ENGINE, r"rank 0|engine"),
                    confidence="certain",
                    waits=False,
                ),
                _kill,
            )
        ],
        ALONE,
        INSIDE,
    ),
    Case(
        "solo_dp_held",
        [
            Moment(
                Truth(
                    "engine 1, in which worker 1 runs, waits for a file's lock; engine 0 is alone "
                    "in a call of all engines",
                    kinds=("not_joined", "missing_call"),
                    ranks=(1,),
                    confidence="certain",
                ),
                ask_with("hold_engines", 0, 1),
            )
        ],
        REPLICAS,
        {**CPU_MOE, **INSIDE},
        faults=["hold_engines"],
    ),
    Case(
        "solo_dp_raises",
        [
            Moment(
                Truth(
                    "engine 1 raised in a step of the worker that it runs, and then the whole "
                    "service ended",
                    ("hung", "diverged"),
                    kinds=("dead_rank",),
                    ranks=(1,),
                    confidence="certain",
                    waits=False,
                ),
                ask_with("raise_in_step", 0, 1),
            )
        ],
        REPLICAS,
        {**CPU_MOE, **INSIDE},
        faults=["raise_in_step"],
    ),
]

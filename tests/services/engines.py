"""Cases in which an engine, its scheduler or the coordinator of engines is at fault."""

from __future__ import annotations

import signal

from tests.integration.moe_serving import ARGUMENTS, CPU_MOE
from tests.services.acts import ask, ask_with, done_at_rest, finish_with, stop, wait_until
from tests.services.case import Case, Moment, Truth
from tests.services.service import Service

__all__ = ["CASES"]

REPLICAS = {"tensor_parallel_size": 1, "data_parallel_size": 2, "arguments": ARGUMENTS}
COORDINATOR = ("DPCoordinator", r"coordinator")
ENGINE = ("EngineCore", r"engine")


def _ask_in_grammar(service: Service) -> None:
    service.plant("hold_grammar")
    service.ask(structured_outputs={"regex": "w1 w2"})


def _stop_coordinator(service: Service) -> None:
    """Stop it once both engines rest: those that still run would take the request unasked."""
    wait_until(lambda: all(done_at_rest(service, replica) > 0 for replica in (0, 1)))
    service.signal("DPCoordinator", signal.SIGSTOP)
    service.ask(replica=0)


CASES = [
    Case(
        "no_blocks",
        [
            Moment(
                Truth(
                    "the scheduler finds no free block of the KV cache for the only request",
                    kinds=("not_scheduled",),
                ),
                ask_with("no_blocks"),
            )
        ],
    ),
    Case(
        "cache_too_small",
        [],
        {"arguments": ["--block-size", "32", "--num-gpu-blocks-override", "8"]},
        refused=Truth(
            "the KV cache has 7 free blocks, and the longest request would need 8: vLLM refuses "
            "to start, and its engine ended with a ValueError",
            ("hung", "unknown", "incomplete"),
            kinds=("dead_rank", "init_stalled"),
            process=ENGINE,
            says="ValueError",
            waits=False,
        ),
        untraced=False,
    ),
    Case(
        "grammar_never",
        [
            Moment(
                Truth(
                    "the only request waits for a grammar whose compilation never ends",
                    kinds=("not_scheduled",),
                    says="grammar|structured",
                ),
                _ask_in_grammar,
            )
        ],
        {"tokenizer": True},
        faults=["hold_grammar"],
    ),
    Case(
        "engine_stopped",
        [
            Moment(
                Truth(
                    "SIGSTOP stopped the engine; no request is open, and the next one will hang",
                    ("unknown", "hung"),
                    ("rpc_stalled",),
                    process=ENGINE,
                    says="stopped",
                    killed=("unknown", "ok"),
                    waits=False,
                ),
                stop("EngineCore"),
                "idle",
            ),
            Moment(
                Truth(
                    "SIGSTOP stopped the engine, and a request waits for it",
                    kinds=("rpc_stalled",),
                    process=ENGINE,
                ),
                ask,
                "busy",
            ),
        ],
    ),
    Case(
        "engine_killed",
        [
            Moment(
                Truth(
                    "SIGKILL ended the engine",
                    kinds=("dead_rank",),
                    process=ENGINE,
                    waits=False,
                ),
                stop("EngineCore", signal.SIGKILL),
                seconds=4.0,
            )
        ],
    ),
    Case(
        "engine_step_held",
        [
            Moment(
                Truth(
                    "the engine waits for a file's lock before it schedules; both workers are idle",
                    kinds=("rpc_stalled", "stalled", "not_scheduled"),
                    process=ENGINE,
                ),
                ask_with("hold_schedule"),
            )
        ],
        faults=["hold_schedule"],
    ),
    Case(
        "engine_input_held",
        [
            Moment(
                Truth(
                    "the engine's input thread waits for a lock: the request reached the engine's "
                    "process and never its scheduler",
                    kinds=("rpc_stalled", "not_scheduled"),
                    process=ENGINE,
                ),
                ask_with("hold_input"),
            )
        ],
        faults=["hold_input"],
    ),
    Case(
        "engine_output_held",
        [
            Moment(
                Truth(
                    "the engine's output thread waits for a lock: the engine has made all tokens, "
                    "and the server gets none",
                    kinds=("rpc_stalled",),
                    process=ENGINE,
                ),
                finish_with("hold_output"),
            )
        ],
        faults=["hold_output", "note_rest"],
    ),
    Case(
        "coordinator_stopped",
        [
            Moment(
                Truth(
                    "SIGSTOP stopped the coordinator: engine 1 is not woken for the request of "
                    "engine 0, whose worker waits for that of engine 1",
                    kinds=("not_joined", "rpc_stalled"),
                    process=COORDINATOR,
                    suspects=(1,),
                ),
                _stop_coordinator,
            )
        ],
        REPLICAS,
        CPU_MOE,
        faults=["note_rest"],
    ),
    Case(
        "dp_engine_held",
        [
            Moment(
                Truth(
                    "engine 1 waits for a file's lock; engine 0 is alone in a call of all engines",
                    kinds=("not_joined", "missing_call"),
                    ranks=(1,),
                    process=("EngineCore_DP1", r"engine 1"),
                    confidence="certain",
                ),
                ask_with("hold_engines", 0, 1),
            )
        ],
        REPLICAS,
        CPU_MOE,
        faults=["hold_engines"],
    ),
    Case(
        "dp_engine_leaves",
        [
            Moment(
                Truth(
                    "engine 1 left out a call of all engines and rests; engine 0 is alone in it",
                    kinds=("not_joined", "missing_call"),
                    ranks=(1,),
                    process=("EngineCore_DP1", r"engine 1"),
                    confidence="certain",
                ),
                ask_with("leave_engines", 0),
            )
        ],
        REPLICAS,
        CPU_MOE,
        faults=["leave_engines"],
    ),
    Case(
        "dp_worker_raises",
        [
            Moment(
                Truth(
                    "worker 1 raised in a step, its engine ended, and then the whole service",
                    ("hung", "diverged", "unknown"),
                    kinds=("dead_rank", "not_joined", "rpc_stalled"),
                    ranks=(1,),
                    process=("EngineCore_DP1", r"engine 1"),
                    confidence="certain",
                    waits=False,
                ),
                ask_with("raise_in_step", 0, 1),
            )
        ],
        REPLICAS,
        CPU_MOE,
        faults=["raise_in_step"],
    ),
]

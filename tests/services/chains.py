"""Cases in which a call of workers waits for an engine: what keeps it is no call."""

from __future__ import annotations

import signal

from tests.integration.moe_serving import CPU_MOE
from tests.services.acts import ask_with, done_at_rest, wait_until
from tests.services.case import Case, Moment, Truth
from tests.services.engines import REPLICAS
from tests.services.service import Service
from tests.services.solo import INSIDE
from tests.services.solo import REPLICAS as INSIDE_REPLICAS

__all__ = ["CASES"]

LAST_ENGINE = ("EngineCore_DP1", r"engine 1|EngineCore_DP1")
_KINDS = ("not_joined", "missing_call", "rpc_stalled")
_AT_LOCK = r"flock|_hold|lock"


def _stop_last_engine(service: Service) -> None:
    """Stop it once both engines rest, and ask the other one."""
    wait_until(lambda: all(done_at_rest(service, replica) > 0 for replica in (0, 1)))
    service.signal(LAST_ENGINE[0], signal.SIGSTOP)
    service.ask(replica=0)


def _hold_check(service: Service, asked: int = 0) -> None:
    """Let worker 1 wait in an RPC, and ask an engine that has other workers."""
    wait_until(lambda: all(done_at_rest(service, replica) > 0 for replica in (0, 1)))
    service.plant("hold_check")
    service.post("/collective_rpc", {"method": "check_health"})
    wait_until(lambda: not service.switch.exists())
    service.ask(replica=asked)


FOUR = {**REPLICAS, "tensor_parallel_size": 2}

CASES = [
    Case(
        "dp_schedule_held",
        [
            Moment(
                Truth(
                    "engine 1 waits for a file's lock before it schedules; its worker 1 is idle, "
                    "and worker 0 waits for it in a call of the experts",
                    kinds=_KINDS,
                    process=LAST_ENGINE,
                    suspects=(1,),
                    says=_AT_LOCK,
                    confidence="certain",
                ),
                ask_with("hold_schedule", 0, 1),
            )
        ],
        REPLICAS,
        CPU_MOE,
        faults=["hold_schedule"],
    ),
    Case(
        "dp_engine_stopped",
        [
            Moment(
                Truth(
                    "SIGSTOP stopped engine 1; its worker 1 is idle, and worker 0 waits for it in "
                    "a call of the experts",
                    kinds=_KINDS,
                    process=LAST_ENGINE,
                    suspects=(1,),
                    says="stopped",
                    confidence="certain",
                ),
                _stop_last_engine,
            )
        ],
        REPLICAS,
        CPU_MOE,
        faults=["note_rest"],
    ),
    Case(
        "dp_check_held",
        [
            Moment(
                Truth(
                    "worker 1 waits for a file's lock in check_health; worker 0 waits for it in a "
                    "call of the experts",
                    kinds=_KINDS,
                    ranks=(1,),
                    says=_AT_LOCK,
                    confidence="certain",
                ),
                _hold_check,
            )
        ],
        REPLICAS,
        CPU_MOE,
        faults=["hold_check", "note_rest"],
    ),
    Case(
        "tp2_dp2_check_held",
        [
            Moment(
                Truth(
                    "worker 1 waits for a file's lock in check_health; worker 0 has answered and "
                    "is idle, as engine 0 waits for worker 1; workers 2 and 3 wait for both of "
                    "them in calls of the experts",
                    kinds=_KINDS,
                    ranks=(1,),
                    says=_AT_LOCK,
                    confidence="certain",
                ),
                lambda service: _hold_check(service, 1),
            )
        ],
        FOUR,
        CPU_MOE,
        faults=["hold_check", "note_rest"],
    ),
    Case(
        "solo_dp_schedule_held",
        [
            Moment(
                Truth(
                    "engine 1, which runs worker 1 itself, waits for a file's lock before it "
                    "schedules; engine 0 waits for it in a call of the experts",
                    kinds=_KINDS,
                    ranks=(1,),
                    says=_AT_LOCK,
                    confidence="certain",
                ),
                ask_with("hold_schedule", 0, 1),
            )
        ],
        INSIDE_REPLICAS,
        {**CPU_MOE, **INSIDE},
        faults=["hold_schedule"],
    ),
]

"""What can go wrong, by name.

A fault is one class derived from :class:`~ncclscope.lab.faults.base.Fault` that overrides
the places at which one rank behaves differently at one step. To try one of your own, add it
to :data:`FAULTS`.
"""

from __future__ import annotations

from ncclscope.errors import LaboratoryError
from ncclscope.lab.faults.base import Fault
from ncclscope.lab.faults.capture import CapturedCall
from ncclscope.lab.faults.coordination import ZeroTokenSkip
from ncclscope.lab.faults.count import ExtraCall, SkippedCall
from ncclscope.lab.faults.dispatch import DivergentDispatch
from ncclscope.lab.faults.group import ReorderedGroup
from ncclscope.lab.faults.link import SilentLink
from ncclscope.lab.faults.order import OrderSwap
from ncclscope.lab.faults.parameter import (
    WrongDtype,
    WrongOp,
    WrongRedop,
    WrongRoot,
    WrongSize,
)
from ncclscope.lab.faults.process import FrozenRank, KilledRank, SleepingRank
from ncclscope.lab.faults.split import StaleSizes
from ncclscope.lab.faults.transfer import WrongPeer

__all__ = ["FAULTS", "Fault", "fault_named"]

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        DivergentDispatch(),
        SkippedCall(),
        ExtraCall(),
        WrongOp(),
        WrongSize(),
        WrongDtype(),
        WrongRedop(),
        WrongRoot(),
        StaleSizes(),
        CapturedCall(),
        WrongPeer(),
        OrderSwap(),
        ReorderedGroup(),
        SleepingRank(),
        KilledRank(),
        FrozenRank(),
        SilentLink(),
        ZeroTokenSkip(),
        Fault(),
    )
}
"""By name; the first is the one a demonstration shows."""


def fault_named(name: str) -> Fault:
    """Returns a fault.

    Raises:
        LaboratoryError: There is none of that name.
    """
    try:
        return FAULTS[name]
    except KeyError:
        raise LaboratoryError(
            f"there is no fault {name!r}", f"choose one of {', '.join(FAULTS)}"
        ) from None

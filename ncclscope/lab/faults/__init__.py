"""Faults by name.

A fault is a class derived from :class:`~ncclscope.lab.faults.base.Fault`. It overrides the methods
in which one rank behaves differently at one step. Faults of other packages are found by entry
point, in the group ``ncclscope.faults``, under the fault's name (docs/extending.md).
"""

from __future__ import annotations

import difflib
from functools import cache
from importlib import metadata

from ncclscope.errors import LaboratoryError
from ncclscope.lab.faults import calls, parameter, process
from ncclscope.lab.faults.base import Fault
from ncclscope.lab.faults.dispatch import DivergentDispatch
from ncclscope.lab.faults.link import SilentLink

__all__ = ["FAULTS", "GROUP", "Fault", "fault_named", "fault_names"]

GROUP = "ncclscope.faults"

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        DivergentDispatch(),
        calls.SkippedCall(),
        calls.AddedCall(),
        parameter.WrongOp(),
        parameter.WrongSize(),
        parameter.WrongDtype(),
        parameter.WrongRedop(),
        parameter.WrongRoot(),
        parameter.StaleSizes(),
        calls.CapturedCall(),
        calls.WrongPeer(),
        calls.OrderSwap(),
        calls.ReorderedGroup(),
        process.SleepingRank(),
        process.KilledRank(),
        process.FrozenRank(),
        SilentLink(),
        calls.ZeroTokenSkip(),
        Fault(),
    )
}
"""Faults of this package by name; ``ncclscope demo`` shows the first one by default."""


def fault_names() -> list[str]:
    """Return the names of all faults, ours first, without loading those of other packages."""
    return list(dict.fromkeys((*FAULTS, *sorted(metadata.entry_points(group=GROUP).names))))


@cache
def fault_named(name: str) -> Fault:
    """Return the fault of a name.

    Raises:
        LaboratoryError: No fault has this name, or it cannot be loaded.
    """
    if name in FAULTS:
        return FAULTS[name]
    for point in metadata.entry_points(group=GROUP, name=name):
        return _load(point)
    known = fault_names()
    close = difflib.get_close_matches(name, known, 1)
    advice = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(known)}"
    raise LaboratoryError(f"there is no fault {name!r}", advice)


def _load(point: metadata.EntryPoint) -> Fault:
    owner = point.dist.name if point.dist else "an unknown distribution"
    try:
        fault = point.load()()
    except Exception as error:
        raise LaboratoryError(
            f"fault {point.name} of {owner} cannot be loaded: {error}", f"update or remove {owner}"
        ) from error
    if not isinstance(fault, Fault) or fault.name != point.name:
        raise LaboratoryError(
            f"fault {point.name} of {owner} is not a class derived from Fault with that name",
            f"update or remove {owner}",
        )
    return fault

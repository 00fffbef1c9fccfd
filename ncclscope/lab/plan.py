"""Program of a laboratory run: its sizes and its fault."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ncclscope.lab.faults import Fault, fault_named
from ncclscope.lab.sizes import BACKENDS, Sizes

__all__ = ["BACKENDS", "Program"]


@dataclass(frozen=True)
class Program(Sizes):
    """One run, fully determined by its numbers: see :class:`~ncclscope.lab.sizes.Sizes`.

    Raises:
        LaboratoryError: There is no such program.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.planted_fault.check(self)

    @property
    def planted_fault(self) -> Fault:
        """The fault to inject."""
        return fault_named(self.fault)

    @property
    def fault_is_idle(self) -> bool:
        return self.planted_fault.idle

    def planted(self) -> dict[str, Any]:
        """Return the fault in the terms of a verdict."""
        return self.planted_fault.planted(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return asdict(self)

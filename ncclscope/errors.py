"""Everything that ncclscope raises on purpose.

NcclscopeError                 what happened, and a help text that says what to do
├── UsageError                 the command line asks for something that cannot be
├── InputError                 a file or directory that cannot be read
│   ├── NothingFoundError      the paths hold no ring, dump or trace
│   └── DamagedFileError       a file that looks like ours but is not consistent
├── RingError                  a ring cannot be made where it was asked for
├── DivergenceError                the guard keeps a call from being posted that can never complete
├── DispatchError              ranks are about to dispatch tokens in ways that do not go together
└── LaboratoryError            the laboratory could not run the program it was asked to run

Each carries the exit status that the command line ends with.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "DamagedFileError",
    "DispatchError",
    "DivergenceError",
    "InputError",
    "LaboratoryError",
    "NcclscopeError",
    "NothingFoundError",
    "RingError",
    "UsageError",
]


class NcclscopeError(Exception):
    """Root of the tree.

    Args:
        message: What happened, one line, without a final full stop.
        help: What to do about it, one line; may be empty.
    """

    exit_status = 2

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.help = help

    def __str__(self) -> str:
        return f"{self.message}; {self.help}" if self.help else self.message


class UsageError(NcclscopeError):
    """The command line asks for something that cannot be."""


class InputError(NcclscopeError):
    """A file or directory that cannot be read."""


class NothingFoundError(InputError):
    """The paths hold no ring, dump or trace."""


class DamagedFileError(InputError):
    """A file that looks like ours but is not consistent.

    Args:
        message: What happened.
        help: What to do about it.
        path: The file, where it was found damaged after others had been read.
    """

    def __init__(self, message: str, help: str = "", *, path: str = "") -> None:
        super().__init__(message, help)
        self.path = path


class RingError(NcclscopeError):
    """A ring cannot be made where it was asked for."""


class DivergenceError(NcclscopeError):
    """The sequences of a communicator have parted; raised under ``NCCLSCOPE_GUARD=raise``.

    It reaches the program in place of the call, which its peers would never have joined.

    Args:
        message: What happened.
        help: What to do about it.
        comm: The communicator's label.
        seq: First call that differs, counted from 1.
        posted: What each rank posted there, and where: ``all_reduce sum [4] float32 at f.py:3 f``.
    """

    exit_status = 1

    def __init__(
        self,
        message: str,
        help: str = "",
        *,
        comm: str = "",
        seq: int = 0,
        posted: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(message, help)
        self.comm = comm
        self.seq = seq
        self.posted = dict(posted or {})


class DispatchError(NcclscopeError):
    """Ranks are about to dispatch tokens to experts in ways that do not go together.

    Args:
        message: What happened.
        help: What to do about it.
        plans: What each global rank was about to do.
    """

    exit_status = 1

    def __init__(
        self, message: str, help: str = "", *, plans: Mapping[int, str] | None = None
    ) -> None:
        super().__init__(message, help)
        self.plans = dict(plans or {})


class LaboratoryError(NcclscopeError):
    """The laboratory could not run the program it was asked to run."""

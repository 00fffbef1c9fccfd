"""Exceptions that ncclscope raises on purpose.

NcclscopeError                 what happened, and a help text that says what to do
├── UsageError                 the command line asks for something impossible
├── ProgramError               the program of ``ncclscope run`` cannot be executed
├── InputError                 a file or directory that cannot be read
│   ├── NothingFoundError      the paths hold no ring, dump or trace
│   └── DamagedFileError       a file that looks like ours but is not consistent
├── RingError                  a ring cannot be made where it was asked for
├── DivergenceError            the guard stops a call that could never complete
├── DispatchError              ranks are about to dispatch tokens in incompatible ways
└── LaboratoryError            the laboratory could not run its program

Each carries the exit status of the command line.
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
    "ProgramError",
    "RingError",
    "UsageError",
    "os_reason",
]


class NcclscopeError(Exception):
    """Base class of all exceptions of ncclscope.

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


def os_reason(error: OSError) -> str:
    """Return why a system call failed, as the end of a sentence."""
    return (error.strerror or str(error)).lower()


class UsageError(NcclscopeError):
    """The command line asks for something impossible."""


class ProgramError(NcclscopeError):
    """The program of ``ncclscope run`` cannot be executed; the exit status is that of env(1).

    Args:
        program: Name of the program.
        reason: Why not.
        is_found: Whether there is such a file.
    """

    def __init__(self, program: str, reason: str, *, is_found: bool) -> None:
        super().__init__(f"cannot run {program}: {reason}")
        self.exit_status = 126 if is_found else 127


class InputError(NcclscopeError):
    """A file or directory that cannot be read."""


class NothingFoundError(InputError):
    """The paths hold no ring, dump or trace."""


class DamagedFileError(InputError):
    """A file that looks like ours but is not consistent.

    Args:
        message: What happened.
        help: What to do about it.
        path: The damaged file; set where other files had been read before it.
    """

    def __init__(self, message: str, help: str = "", *, path: str = "") -> None:
        super().__init__(message, help)
        self.path = path


class RingError(NcclscopeError):
    """A ring cannot be made where it was asked for."""


class DivergenceError(NcclscopeError):
    """The calls of a communicator's ranks diverge; raised under ``NCCLSCOPE_GUARD=raise``.

    The guard raises it in place of the call, which the peers would never have joined.

    Args:
        message: What happened.
        help: What to do about it.
        comm: The communicator's label.
        seq: First call that differs, counted from 1.
        posted: By rank, its call and call site: ``all_reduce sum [4] float32 at f.py:3 f``.
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
    """Ranks are about to dispatch tokens to experts in incompatible ways.

    Args:
        message: What happened.
        help: What to do about it.
        plans: By global rank, the dispatch that it was about to make.
    """

    exit_status = 1

    def __init__(
        self, message: str, help: str = "", *, plans: Mapping[int, str] | None = None
    ) -> None:
        super().__init__(message, help)
        self.plans = dict(plans or {})


class LaboratoryError(NcclscopeError):
    """The laboratory could not run its program."""


PartedError = DivergenceError
"""The former name, which programs of others may catch."""

"""Everything that ncclscope raises on purpose.

NcclscopeError                 what happened, and a help text that says what to do
├── UsageError                 the command line asks for something that cannot be
├── InputError                 a file or directory that cannot be read
│   ├── NothingFoundError      the paths hold no ring, dump or trace
│   └── DamagedFileError       a file that looks like ours but is not consistent
├── RingError                  a ring cannot be made where it was asked for
└── LaboratoryError            the laboratory could not run the program it was asked to run

Each carries the exit status that the command line ends with.
"""

from __future__ import annotations

__all__ = [
    "DamagedFileError",
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
    """A file that looks like ours but is not consistent."""


class RingError(NcclscopeError):
    """A ring cannot be made where it was asked for."""


class LaboratoryError(NcclscopeError):
    """The laboratory could not run the program it was asked to run."""

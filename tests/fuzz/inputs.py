"""What is fuzzed: base inputs, the inputs that are made of them, and the answers to these."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FAILURES", "Answer", "BaseInput", "Files", "Input", "Surface"]

FAILURES = frozenset(
    {
        "error",
        "killed",
        "too slow",
        "too much memory",
        "blames",
        "false OK",
        "invented call",
        "control byte",
        "outside",
    }
)
"""Answers that an input must not have."""

_FURTHER = 8
"""One input in this many is a kept one that is damaged further."""

Files = Mapping[str, bytes]
"""Contents by path, relative to the directory of the input."""


@dataclass(frozen=True)
class BaseInput:
    """An undamaged input whose verdict is known.

    Attributes:
        name: What the job did.
        files: What is damaged.
        healthy: Whether the job was in order.
        calls: All calls that its records hold, as the oracle compares them; None where no checksum
            would show that a call was altered.
        keep: Files that are never damaged, such as the undamaged half of a pair.
        origin: Name of the base input that it was made of, where it is a kept input.
    """

    name: str
    files: Files
    healthy: bool = True
    calls: frozenset[Any] | None = None
    keep: frozenset[str] = frozenset()
    origin: str = ""


@dataclass(frozen=True)
class Input:
    """A damaged copy of a base input.

    Attributes:
        base: The base input that was damaged.
        files: What it is now.
        change: What was done to it.
        forged: Whether checksums were made to fit, so that no reader can detect the damage.
    """

    base: BaseInput
    files: Files
    change: str
    forged: bool = False

    @property
    def changed(self) -> dict[str, bytes | None]:
        """The files that differ from the base input's; None for one that is gone."""
        before = self.base.files
        found: dict[str, bytes | None] = {
            name: data for name, data in self.files.items() if before.get(name) is not data
        }
        return found | dict.fromkeys(before.keys() - self.files.keys())

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(map(len, self.files.values()))


@dataclass(frozen=True)
class Answer:
    """Outcome of an input.

    Attributes:
        kind: One of :data:`FAILURES`, ``refused``, or what the answer was, such as a status.
        text: What is wrong with it.
    """

    kind: str
    text: str = ""

    @property
    def failed(self) -> bool:
        """Whether the input must not have been answered so."""
        return self.kind in FAILURES


Damage = Callable[[random.Random, BaseInput], Input]


@dataclass
class Surface(ABC):
    """One way in which foreign bytes reach ncclscope.

    Attributes:
        name: For ``--only``.
        bases: Base inputs, which are damaged.
        damages: Ways to damage it; one that is listed twice is chosen twice as often.
        kept: Inputs that once failed.
        weight: Its share of all inputs, relative to others.
    """

    name: str
    bases: list[BaseInput] = field(default_factory=list)
    damages: Sequence[Damage] = ()
    kept: list[BaseInput] = field(default_factory=list)
    weight: int = 2

    def make(self, seed: int) -> Input:
        """Return the input of a seed, the same each time; of a negative one a kept input."""
        if seed < 0:
            one = self.kept[-1 - seed]
            return Input(one, one.files, "as it was kept")
        dice = random.Random(f"{self.name} {seed}")
        further = self.kept and not seed % _FURTHER
        base = dice.choice(self.kept if further else self.bases)
        return dice.choice(self.damages)(dice, base)

    @abstractmethod
    def judge(self, given: Input, seed: int) -> Answer:
        """Have the product read an input; exceptions are the caller's to judge."""

"""Sizes of a laboratory run, and the tokens of each step."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from ncclscope.errors import LaboratoryError

BACKENDS = ("gloo", "nccl")

_IDLE_SHARE = 1 / 8
"""Share of steps in which a replica is idle and runs a dummy batch."""

_FAULT_STEPS = range(5, 13)
"""Steps of the fault: late enough for a common history, early enough for a demonstration."""


@dataclass(frozen=True)
class Sizes:
    """One run, fully determined by these numbers.

    Global rank = data-parallel rank x ``tp`` + tensor-parallel rank.

    Attributes:
        tp: Ranks of one replica.
        dp: Replicas.
        layers: Mixture-of-experts layers.
        steps: Steps after which the run ends, counted from 1.
        hidden: Width of the hidden state.
        experts: Width of a row of routing metadata.
        max_tokens: Most tokens of a replica in one step.
        seed: Seed of token counts, and of rank, step and layer of the fault.
        fault: One of :func:`ncclscope.lab.faults.fault_names`.
        fault_rank: Global rank of the fault; -1 to draw it from the seed.
        fault_step: Step of the fault; -1 to draw it from the seed.
        fault_layer: Layer of the fault; -1 to draw it from the seed.
        backend: ``gloo``, or ``nccl`` with one GPU per rank.

    Raises:
        LaboratoryError: A size is out of range.
    """

    tp: int = 4
    dp: int = 2
    layers: int = 20
    steps: int = 16
    hidden: int = 64
    experts: int = 256
    max_tokens: int = 32
    seed: int = 0
    fault: str = "divergent_dispatch"
    fault_rank: int = -1
    fault_step: int = -1
    fault_layer: int = -1
    backend: str = "gloo"

    def __post_init__(self) -> None:
        self._check_sizes()
        dice = random.Random(f"{self.seed}/{self.fault}")
        last = max(min(self.steps, _FAULT_STEPS[-1]), 1)
        places = {
            "fault_rank": (0, self.world_size - 1),
            "fault_step": (min(_FAULT_STEPS[0], last), last),
            "fault_layer": (0, self.layers - 1),
        }
        for name, (low, high) in places.items():
            drawn = dice.randint(low, high)
            if getattr(self, name) == -1:
                object.__setattr__(self, name, drawn)
        self._check_place()

    @property
    def fault_is_idle(self) -> bool:
        """Whether the diverging rank's replica has no tokens in the step of the fault."""
        return False

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tp * self.dp

    def place(self, rank: int) -> tuple[int, int]:
        """Return the data-parallel and the tensor-parallel rank of a global rank."""
        return divmod(rank, self.tp)

    def replica(self, dp_rank: int) -> tuple[int, ...]:
        """Return the global ranks of one replica."""
        return tuple(range(dp_rank * self.tp, (dp_rank + 1) * self.tp))

    def counterparts(self, tp_rank: int) -> tuple[int, ...]:
        """Return the global ranks with the same tensor-parallel rank."""
        return tuple(range(tp_rank, self.world_size, self.tp))

    def communicator(self, kind: str, rank: int) -> dict[str, Any]:
        """Return one communicator of a rank as a verdict describes it.

        Args:
            kind: ``tp``, ``dp`` or ``world``.
            rank: Global rank of a member.
        """
        dp_rank, tp_rank = self.place(rank)
        if kind == "tp":
            return {"label": "tp:0", "ranks": list(self.replica(dp_rank))}
        if kind == "dp":
            return {"label": "dp:0", "ranks": list(self.counterparts(tp_rank))}
        return {"label": "world", "ranks": list(range(self.world_size))}

    def tokens(self, step: int, dp_rank: int) -> int:
        """Return the number of tokens of a replica in a step; 0 if it is idle."""
        dice = random.Random(f"{self.seed}/{step}/{dp_rank}")
        idle = dice.random() < _IDLE_SHARE
        tokens = dice.randint(2, self.max_tokens)
        if step == self.fault_step:
            # A fault needs its kind of batch, whatever was drawn.
            idle = self.fault_is_idle and dp_rank == self.place(self.fault_rank)[0]
        return 0 if idle else tokens

    def rows(self, step: int, dp_rank: int) -> int:
        """Return the rows of the batch: an idle replica runs a dummy token."""
        return max(self.tokens(step, dp_rank), 1)

    def _check_sizes(self) -> None:
        least = dict.fromkeys(("tp", "dp", "layers", "steps", "hidden", "experts"), 1)
        least["max_tokens"] = 2
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise LaboratoryError(
                    f"{name}={getattr(self, name)} is too small", f"give at least {minimum}"
                )
        if self.world_size < 2:
            raise LaboratoryError("a single rank has no peers", "give tp or dp of at least 2")
        if self.backend not in BACKENDS:
            raise LaboratoryError(
                f"there is no backend {self.backend!r} here", f"choose {' or '.join(BACKENDS)}"
            )

    def _check_place(self) -> None:
        for name, first, count in (
            ("fault_rank", 0, self.world_size),
            ("fault_step", 1, self.steps),
            ("fault_layer", 0, self.layers),
        ):
            value = getattr(self, name)
            if not first <= value < first + count:
                raise LaboratoryError(
                    f"{name}={value} is outside the run", f"give {first} to {first + count - 1}"
                )

"""Which tokens there are in a step and where they go: the same on all ranks, from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from ncclscope.lab.plan import Program
from ncclscope_patches.moe_dispatch import ExpertPlacement

HARMLESS = "busy"
"""The one kind of step in which every rank's experts have something to do."""

KINDS = (
    *("empty", "single token", "one expert", "idle rank", "idle replica", "silent replica"),
    *("few tokens", HARMLESS),
)


@dataclass(frozen=True)
class Plan:
    """The program of a soak.

    Attributes:
        program: Ranks, layers, experts, width and seed, as the laboratory has them.
        strategy: How tokens travel.
        sequence_parallel: Whether each rank of a replica holds its own rows.
        hazard: How likely a step is not harmless.
        verify: Whether ranks compare what they are about to do.
    """

    program: Program
    strategy: str
    sequence_parallel: bool = False
    hazard: float = 1.0
    verify: bool = True

    @property
    def placement(self) -> ExpertPlacement:
        """Which rank has which expert."""
        return ExpertPlacement(self.program.experts, self.program.world_size)

    def step(self, number: int) -> Step:
        """Return the work of one step."""
        dice = random.Random(f"{self.program.seed}/{number}")
        harmful = dice.random() < self.hazard
        kinds = [dice.choice(KINDS) if harmful else HARMLESS for _ in range(self.program.layers)]
        # The rows are the same in all layers, what happens to them is not.
        rows = _rows(kinds[0], dice, self.program.dp, self.program.max_tokens)
        return Step(rows, tuple(self._ids(kind, rows, dice) for kind in kinds))

    def loads(self, step: Step) -> Iterator[list[int]]:
        """Yield, layer by layer, how many tokens each rank's experts are given."""
        for layer in step.ids:
            counts = [0] * self.program.world_size
            for expert in (expert for own in layer for expert in own):
                counts[self.placement.owner(expert)] += 1
            # A rank sees what its dispatch group sees: all tokens, in every layout.
            yield counts

    def divergence(self) -> tuple[int, list[int]] | None:
        """Return the first step in which the ranks' loads differ, and the loads; or None."""
        for number in range(1, self.program.steps + 1):
            for counts in self.loads(self.step(number)):
                if any(counts) and not all(counts):
                    return number, counts
        return None

    def _ids(
        self, kind: str, rows: tuple[int, ...], dice: random.Random
    ) -> tuple[tuple[int, ...], ...]:
        experts = list(range(self.program.experts))
        if kind == "one expert":
            experts = [dice.choice(experts)]
        elif kind == "idle rank":
            idle = self.placement.owned(dice.randrange(self.program.world_size))
            experts = [expert for expert in experts if expert not in idle]
        elif kind == "idle replica":
            replica = self.program.replica(dice.randrange(self.program.dp))
            experts = [one for one in experts if self.placement.owner(one) not in replica]
        drawn = iter(dice.choices(experts, k=sum(rows)))
        if kind == HARMLESS and sum(rows) >= self.program.world_size:
            ranks = range(self.program.world_size)
            covering = [dice.choice(self.placement.owned(rank)) for rank in ranks]
            covering += dice.choices(experts, k=sum(rows) - len(covering))
            dice.shuffle(covering)
            drawn = iter(covering)
        return tuple(tuple(next(drawn) for _ in range(own)) for own in rows)


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        rows: Tokens of each replica.
        ids: By layer, by replica: the expert of each token.
    """

    rows: tuple[int, ...]
    ids: tuple[tuple[tuple[int, ...], ...], ...]


def _rows(kind: str, dice: random.Random, replicas: int, most: int) -> tuple[int, ...]:
    if kind == "empty":
        return (0,) * replicas
    if kind == "single token":
        holder = dice.randrange(replicas)
        return tuple(int(replica == holder) for replica in range(replicas))
    if kind == "few tokens":
        return tuple(dice.randint(0, 2) for _ in range(replicas))
    silent = dice.randrange(replicas) if kind == "silent replica" else -1
    return tuple(
        0 if replica == silent else dice.randint(most // 2, most) for replica in range(replicas)
    )

"""One example: which tokens there are, where they go, and how they travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from ncclscope_patches.moe_dispatch import ExpertPlacement
from tests.moe.reference import EXPERTS, HIDDEN, Layer

RANKS = 4


@dataclass(frozen=True)
class Layout:
    """How the ranks are used.

    Attributes:
        tp: Ranks of a replica.
        sequence_parallel: Whether each of them holds its own rows.
        ranks: How many there are.
    """

    tp: int = 1
    sequence_parallel: bool = False
    ranks: int = RANKS

    @property
    def replicas(self) -> int:
        """How many there are."""
        return self.ranks // self.tp


LAYOUTS = (Layout(1), Layout(2), Layout(2, True), Layout(4), Layout(4, True))


@dataclass(frozen=True)
class Batch:
    """Tokens of a replica."""

    hidden: torch.Tensor
    weights: torch.Tensor
    ids: torch.Tensor
    extra: tuple[torch.Tensor, ...]

    def rows(self, chosen: slice) -> Batch:
        """Return some of them."""
        extra = tuple(tensor[chosen] for tensor in self.extra)
        return Batch(self.hidden[chosen], self.weights[chosen], self.ids[chosen], extra)

    def to(self, device: str) -> Batch:
        """Return them on a device."""
        extra = tuple(tensor.to(device) for tensor in self.extra)
        return Batch(self.hidden.to(device), self.weights.to(device), self.ids.to(device), extra)


@dataclass(frozen=True)
class Case:
    """An example.

    Attributes:
        layout: How the ranks are used.
        strategy: How tokens travel.
        routed: By rank, the experts of the tokens that it would hold if each held its own; a
            replica has those of its ranks.
        siblings: Whether each token goes to the other expert of the same rank, too.
        bfloat16: Whether that is the type of tokens and weights; float32 otherwise.
        shared: Whether there is a shared expert.
        extra: Whether scales of two types are sent along.
        seed: Of the tokens' values.
        verify: Whether ranks compare what they are about to do.
    """

    layout: Layout
    strategy: str
    routed: tuple[tuple[int, ...], ...]
    siblings: bool = False
    bfloat16: bool = False
    shared: bool = False
    extra: bool = False
    seed: int = 0
    verify: bool = True

    @property
    def layer(self) -> Layer:
        """The weights."""
        return Layer(torch.bfloat16 if self.bfloat16 else torch.float32)

    @cached_property
    def batches(self) -> list[Batch]:
        """The tokens of each replica, the same in every process."""
        dice = torch.Generator().manual_seed(self.seed)
        return [self._batch(replica, dice) for replica in range(self.layout.replicas)]

    @property
    def loads(self) -> list[int]:
        """How many tokens each rank's experts are given."""
        placement = ExpertPlacement(EXPERTS, self.layout.ranks)
        owners = [placement.owner(expert) for own in self.routed for expert in own]
        return [owners.count(rank) for rank in range(self.layout.ranks)]

    def _batch(self, replica: int, dice: torch.Generator) -> Batch:
        tp = self.layout.tp
        held = self.routed[replica * tp : (replica + 1) * tp]
        first = torch.tensor([expert for own in held for expert in own], dtype=torch.int64)
        rows = len(first)
        ids = torch.stack([first, first ^ 1], 1) if self.siblings else first.unsqueeze(1)
        weights = torch.rand(ids.shape, generator=dice)
        hidden = torch.randn(rows, HIDDEN, generator=dice).to(self.layer.dtype)
        extra: tuple[torch.Tensor, ...] = ()
        if self.extra:
            # int16 is no type that gloo knows.
            counts = torch.randint(1, 4, (rows,), generator=dice).to(torch.int16)
            extra = (torch.rand(rows, 1, generator=dice) + 0.5, counts)
        return Batch(hidden, weights, ids, extra)


def check_results(case: Case, results: Sequence[list[list[float]]]) -> None:
    """Compare what each rank has of its replica's rows with a dense layer in this process.

    Raises:
        AssertionError: They are not the same.
    """
    # As float32 has it to 1e-5. In bfloat16 each of the sums over ranks is rounded, once to its
    # 8 bits for each rank; so is what is summed, and what is shared.
    tolerance = (case.layout.ranks + 3) * 2.0**-8 if case.bfloat16 else 1e-5
    for replica, batch in enumerate(case.batches):
        expected, size = case.layer.dense(
            batch.hidden, batch.weights, batch.ids, batch.extra, shared=case.shared
        )
        for rank in range(replica * case.layout.tp, (replica + 1) * case.layout.tp):
            found = torch.tensor(results[rank], dtype=torch.float64).reshape(-1, HIDDEN)
            assert found.shape == expected.shape
            assert bool(((found - expected).abs() <= tolerance * size).all()), (rank, case)

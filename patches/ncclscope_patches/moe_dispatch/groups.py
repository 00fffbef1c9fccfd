"""The process groups of a mixture-of-experts layer, and their collectives.

The first dimension of every tensor is *rows*, one for each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from ncclscope.errors import UsageError

# Newer names of all_gather_into_tensor and reduce_scatter_tensor, which torch 2.13 deprecates.
_gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_into = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_PLAIN = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int8, torch.uint8),
    }
)
"""Types that every backend supports; others, such as float8, are sent as bytes."""


class RowGroup:
    """Collectives of rows over one process group.

    A group of one enqueues nothing: its results are its inputs.

    Args:
        group: The process group; None for a group of this process alone.

    Attributes:
        ranks: Global ranks of the members.
        size: Number of members.
        rank: This process's rank in the group.
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self.group = group
        own = dist.get_rank() if dist.is_initialized() else 0
        self.ranks = (own,) if group is None else tuple(dist.get_process_group_ranks(group))
        self.size = len(self.ranks)
        if own not in self.ranks:
            raise UsageError(f"rank {own} is no member of the group of {self.ranks}")
        self.rank = self.ranks.index(own)

    @property
    def device(self) -> torch.device:
        """Device for small tensors sent through this group."""
        if self.size == 1 or "gloo" in str(dist.get_backend(self.group)):
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())

    @property
    def _exact(self) -> bool:
        """Whether the backend can gather different sizes in one call."""
        return str(dist.get_backend(self.group)) == "nccl"

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Gather the rows of all members, which have equally many."""
        if self.size == 1:
            return rows
        wire = _to_wire(rows)
        output = wire.new_empty((self.size * wire.shape[0], *wire.shape[1:]))
        _gather_into(output, wire, group=self.group)
        return _from_wire(output, rows)

    def gather_sizes(self, rows: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """Gather the rows of all members, which may have different numbers of rows.

        Args:
            rows: This rank's rows, ``[sizes[rank], ...]``.
            sizes: Number of rows of each member; equal on all of them.
        """
        if self.size == 1:
            return rows
        if not self._exact:
            most = max(sizes)
            parts = torch.split(self.gather(pad_rows(rows, most)), [most] * self.size)
            return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
        wire = _to_wire(rows)
        output = wire.new_empty((sum(sizes), *wire.shape[1:]))
        dist.all_gather(list(torch.split(output, list(sizes))), wire, group=self.group)
        return _from_wire(output, rows)

    def scatter(self, rows: torch.Tensor) -> torch.Tensor:
        """Sum over the members, and return this member's equal share of the rows."""
        if self.size == 1:
            return rows
        output = rows.new_empty((rows.shape[0] // self.size, *rows.shape[1:]))
        _reduce_scatter_into(output, rows.contiguous(), group=self.group)
        return output

    def scatter_sizes(self, rows: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """Sum over the members, and return this member's rows.

        Args:
            rows: Rows for all members, ``[sum(sizes), ...]``.
            sizes: Number of rows for each member; equal on all of them.
        """
        if self.size == 1:
            return rows
        parts = list(torch.split(rows.contiguous(), list(sizes)))
        if not self._exact:
            padded = torch.cat([pad_rows(part, max(sizes)) for part in parts])
            return self.scatter(padded)[: sizes[self.rank]]
        output = rows.new_empty((sizes[self.rank], *rows.shape[1:]))
        dist.reduce_scatter(output, parts, group=self.group)
        return output

    def sum(self, rows: torch.Tensor) -> torch.Tensor:
        """Sum over the members, in place."""
        if self.size > 1:
            dist.all_reduce(rows, group=self.group)
        return rows


@dataclass(frozen=True)
class ExpertGroups:
    """The groups of one rank. Expert-parallel rank = data-parallel rank x tp + tensor-parallel.

    Attributes:
        expert: All ranks that share the experts.
        dispatch: The ranks whose tokens are gathered. If all ranks of a replica hold the same
            rows, these are the ranks with the same index in each replica; else all of ``expert``.
        tensor: The ranks of the replica.
        control: The members of ``expert``, in the same order, for the agreement. With NCCL it is
            a gloo group, so that agreeing does not wait for the GPU.
        sequence_parallel: Whether each rank of a replica holds its own rows.
    """

    expert: RowGroup
    dispatch: RowGroup
    tensor: RowGroup
    control: RowGroup
    sequence_parallel: bool

    def __post_init__(self) -> None:
        if self.control.ranks != self.expert.ranks:
            raise UsageError("the control group has other members than the expert group")
        members = self.expert.ranks if self.sequence_parallel else self.peers
        if self.dispatch.ranks != members or self.tensor.ranks != self.replica:
            raise UsageError(
                f"groups of {self.dispatch.ranks} and {self.tensor.ranks} do not go together",
                "number the ranks data-parallel x tp + tensor-parallel",
            )

    @property
    def tp(self) -> int:
        """Number of ranks of a replica."""
        return self.tensor.size

    @property
    def replica(self) -> tuple[int, ...]:
        """Global ranks of the replica."""
        first = self.expert.rank // self.tp * self.tp
        return self.expert.ranks[first : first + self.tp]

    @property
    def peers(self) -> tuple[int, ...]:
        """Global ranks with the same index in each replica."""
        return self.expert.ranks[self.expert.rank % self.tp :: self.tp]

    @classmethod
    def create(
        cls, *, tp: int = 1, sequence_parallel: bool = False, control: str | None = None
    ) -> ExpertGroups:
        """Create the groups from all ranks of the job; call it on each of them.

        Args:
            tp: Number of ranks of a replica.
            sequence_parallel: Whether each rank of a replica holds its own rows.
            control: Backend for the agreement; by default gloo, if the job uses another one.

        Raises:
            UsageError: The number of ranks is not a multiple of `tp`.
        """
        world, own = dist.get_world_size(), dist.get_rank()
        if tp < 1 or world % tp:
            raise UsageError(f"{world} ranks are no replicas of {tp} ranks")
        everybody = RowGroup(dist.group.WORLD if world > 1 else None)
        if control is None and everybody.device.type != "cpu":
            control = "gloo"
        agreeing = everybody
        if control is not None and world > 1:
            agreeing = RowGroup(dist.new_group(backend=control, group_desc="moe_control"))
        replicas = [range(first, first + tp) for first in range(0, world, tp)]
        tensor = _own_group(replicas, own, "tp")
        if tp == 1 or sequence_parallel:
            dispatch = everybody
        else:
            dispatch = _own_group([range(first, world, tp) for first in range(tp)], own, "dp")
        return cls(everybody, dispatch, tensor, agreeing, sequence_parallel or tp == 1)


def pad_rows(rows: torch.Tensor, count: int, value: float = 0) -> torch.Tensor:
    """Pad `rows` ``[n, ...]`` to `count` rows with `value`.

    Args:
        rows: The rows, ``[n, ...]``.
        count: Number of rows of the result, at least `n`.
        value: Value of the added rows.
    """
    missing = count - rows.shape[0]
    if not missing:
        return rows
    return torch.cat([rows, rows.new_full((missing, *rows.shape[1:]), value)])


def _own_group(families: Sequence[range], own: int, name: str) -> RowGroup:
    """Create all groups of one kind, as every rank must, and return this rank's.

    Args:
        families: Ranks of each group.
        own: This rank.
        name: Description of the groups, for torch.
    """
    found = None
    for ranks in families:
        if len(ranks) > 1:
            group = dist.new_group(list(ranks), group_desc=name)
            found = group if own in ranks else found
    return RowGroup(found)


def _to_wire(rows: torch.Tensor) -> torch.Tensor:
    rows = rows.contiguous()
    return rows if rows.dtype in _PLAIN else rows.unsqueeze(-1).view(torch.uint8)


def _from_wire(wire: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return wire if like.dtype in _PLAIN else wire.view(like.dtype).squeeze(-1)

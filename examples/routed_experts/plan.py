"""What a run of the laboratory is: sizes, and the way in which routing gets to the answers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts import RoutingShape

__all__ = ["WAYS", "Plan"]

WAYS = ("off", "old", "new")
"""No routing; by shared memory and a lock file; with the outputs of the steps."""
_FOUR_BYTES = 1 << 17
"""Number of experts that takes four bytes for each, as the old way always did."""


@dataclass(frozen=True)
class Plan:
    """One run. Global rank = data-parallel rank x ``tp`` + tensor-parallel rank.

    Attributes:
        workplace: Folder for all files of the run, in memory.
        way: One of :data:`WAYS`.
        save: In the old way: whether workers write each step.
        read: In the old way: whether the scheduler reads for each request that ends.
        dp: Replicas, each with a scheduler.
        tp: Workers of a replica.
        layers: Layers that route tokens.
        top_k: Experts of a token.
        experts: Experts of a layer.
        hidden: Width of a hidden state.
        block_size: Tokens of a KV block.
        blocks: KV blocks of a replica.
        budget: Tokens of a step.
        running: Requests of a step.
        depth: Steps that are in flight at a time.
        agree_every: Steps between two agreements of the schedulers on whether to go on.
        timeout: Seconds after which a collective has failed.
        wide: Whether numbers of experts take four bytes in the new way, too.
    """

    workplace: str
    way: str = "off"
    save: bool = True
    read: bool = True
    dp: int = 2
    tp: int = 2
    layers: int = 36
    top_k: int = 4
    experts: int = 128
    hidden: int = 16
    block_size: int = 16
    blocks: int = 320
    budget: int = 2048
    running: int = 64
    depth: int = 2
    agree_every: int = 8
    timeout: float = 60.0
    wide: bool = False

    def __post_init__(self) -> None:
        least = ("dp", "tp", "layers", "top_k", "blocks", "budget", "running", "depth")
        for name in least:
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)} is too small", "give at least 1")
        if self.world_size < 2:
            raise UsageError("a single worker has no peers", "give --dp or --tp of at least 2")
        if self.experts < max(self.world_size, self.top_k):
            raise UsageError(f"{self.experts} experts are too few for {self.world_size} workers")

    @property
    def world_size(self) -> int:
        """Workers."""
        return self.dp * self.tp

    @property
    def slots(self) -> int:
        """Tokens that a replica's KV cache holds."""
        return self.blocks * self.block_size

    @property
    def shape(self) -> RoutingShape:
        """Layers, experts per token and number of experts of the routing."""
        wide = self.wide or self.way == "old"
        return RoutingShape(self.layers, self.top_k, _FOUR_BYTES if wide else self.experts)

    @property
    def rings(self) -> Path:
        """Where the workers' rings go."""
        return Path(self.workplace) / "rings"

    @property
    def engine_rings(self) -> Path:
        """Where those of the schedulers go, which are a job of their own."""
        return Path(self.workplace) / "engine-rings"

    @property
    def board(self) -> Path:
        """The figures that all processes write."""
        return Path(self.workplace) / "board"

    @property
    def log(self) -> Path:
        """What the processes print."""
        return Path(self.workplace) / "log"

    def segment(self, replica: int) -> Path:
        """Return the old way's shared memory."""
        return Path(self.workplace) / f"routing-{replica}"

    def wire_log(self, replica: int) -> Path:
        """Return the file of what a scheduler has received from its workers, step by step."""
        return Path(self.workplace) / f"wire-{replica}.json"

    def meeting(self, name: str) -> str:
        """Return where processes of one kind find each other."""
        return (Path(self.workplace) / f"meeting-{name}").as_uri()

    def to_json(self) -> str:
        """Return the plan as one line of text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what :meth:`to_json` wrote."""
        return cls(**json.loads(text))

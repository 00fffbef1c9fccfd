"""Fault: a send that no rank receives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ncclscope.lab.faults.base import Fault, describe

if TYPE_CHECKING:
    from ncclscope.lab.engine import Engine
    from ncclscope.lab.sizes import Sizes

__all__ = ["WrongPeer"]


class _Ring(Fault):
    """Each rank sends a tensor to the next one, at the end of each step."""

    distance: ClassVar[int] = 1

    def finish(self, engine: Engine) -> None:
        world, rank = engine.world, engine.rank
        sent = engine.tensor((engine.program.hidden,), value=rank)
        room = engine.tensor((engine.program.hidden,))
        receiver = (rank + self.distance) % world.size
        # Every second rank receives first: a ring of ranks that all send would deadlock.
        if rank % 2:
            world.recv(room, (rank - 1) % world.size)
        world.send(sent, receiver)
        if not rank % 2:
            world.recv(room, (rank - 1) % world.size)
        super().finish(engine)


class WrongPeer(_Ring):
    """The rank sends to the rank after the next one, which does not receive from it.

    Neither this send nor the receive of the right rank completes.
    """

    name: ClassVar[str] = "wrong_peer"
    kind: ClassVar[str | None] = "p2p_mismatch"
    least_ranks: ClassVar[int] = 3
    distance: ClassVar[int] = 2

    def usual(self) -> Fault:
        return _Ring()

    def planted(self, program: Sizes) -> dict[str, Any]:
        rank = program.fault_rank
        wrong, right = ((rank + step) % program.world_size for step in (2, 1))
        call = {"shape": [program.hidden], "dtype": "int32"}
        return describe(
            self,
            program,
            "world",
            f"sends to rank {wrong}, which expects nothing, instead of rank {right}",
            odd={"op": "send", "peer": wrong, **call},
            peers={"op": "recv", "peer": rank, **call},
        )

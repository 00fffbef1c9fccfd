"""Faults in which calls: one fewer, one more, another order, another receiver, captured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ncclscope.lab.faults.base import Fault, describe, hidden_reduction

if TYPE_CHECKING:
    import torch

    from ncclscope.lab.engine import Engine
    from ncclscope.lab.sizes import Sizes


class SkippedCall(Fault):
    """The rank skips one all_reduce of its replica and goes on.

    The calls that follow look the same and complete with the wrong partner; only the last ones of
    the step have none.
    """

    name = "skipped_call"
    kind = "missing_call"
    least_tp = 2

    def planted(self, program: Sizes) -> dict[str, Any]:
        return describe(
            self,
            program,
            "tp",
            f"skips the all_reduce on tp:0 after the experts of layer {program.fault_layer}",
            odd=None,
            peers=hidden_reduction(program),
            extent=1,
        )

    def reduce_experts(self, engine: Engine, hidden: torch.Tensor, layer: int) -> None:
        if layer != engine.program.fault_layer:
            engine.reduce_experts(hidden)


class AddedCall(Fault):
    """The rank posts one all_reduce that its peers do not post."""

    name = "extra_call"
    kind = "extra_call"
    least_tp = 2

    def planted(self, program: Sizes) -> dict[str, Any]:
        return describe(
            self,
            program,
            "tp",
            f"posts an additional all_reduce on tp:0 in layer {program.fault_layer}",
            odd=hidden_reduction(program),
            peers=None,
            extent=1,
        )

    def reduce_experts(self, engine: Engine, hidden: torch.Tensor, layer: int) -> None:
        engine.reduce_experts(hidden)
        if layer == engine.program.fault_layer:
            engine.tp.all_reduce(hidden)


class ZeroTokenSkip(Fault):
    """A rank without tokens skips the exchange of batch sizes with the other replicas.

    It still runs its dummy batch, with the sizes that the exchange would have returned, so that
    only this one call is missing.
    """

    name = "zero_token_skip"
    kind = "missing_call"
    idle = True
    least_dp = 2

    def planted(self, program: Sizes) -> dict[str, Any]:
        return describe(
            self,
            program,
            "dp",
            "has no tokens and skips the all_reduce on dp:0 that the other replicas wait in",
            odd=None,
            peers={"op": "all_reduce", "shape": [program.dp], "dtype": "int32", "redop": "sum"},
            extent=1,
        )

    def coordinate(self, engine: Engine) -> list[int]:
        program = engine.program
        return [program.rows(program.fault_step, replica) for replica in range(program.dp)]


class OrderSwap(Fault):
    """The rank enters the world before its replica; its peers do the opposite.

    Each communicator has the same sequence on all ranks. The rank waits for its peers in one, and
    they wait for it in the other.
    """

    name = "order_swap"
    kind = "order_cycle"
    least_tp = 2

    def planted(self, program: Sizes) -> dict[str, Any]:
        return describe(
            self,
            program,
            "tp",
            "posts the all_reduce on world before the all_gather on tp:0, its peers after it",
            odd={"op": "all_reduce", "shape": [program.experts], "dtype": "int32"},
            peers={"op": "all_gather", "dtype": "float32"},
            other_comm=program.communicator("world", program.fault_rank),
        )

    def finish(self, engine: Engine) -> None:
        engine.count_load()
        engine.gather_logits()


class _GroupedLoad(Fault):
    """All ranks sum load, rows and layers in one group, at the end of each step."""

    def finish(self, engine: Engine) -> None:
        engine.gather_logits()
        with engine.world.group():
            for size in self.sizes(engine.program):
                engine.world.all_reduce(engine.tensor((size,)))

    def sizes(self, program: Sizes) -> list[int]:
        """Return the elements of each all_reduce of the group, in order of posting."""
        return [program.experts, program.world_size, 1]


class ReorderedGroup(_GroupedLoad):
    """The rank reverses the calls inside one group: latent, the run ends in order.

    The laboratory simulates groups on every backend: it batches the calls inside a group and runs
    them at its end, sorted by size, as NCCL does. The records are those of a real NCCL group.
    """

    name = "reordered_group"
    kind = "group_order"
    least_ranks = 3

    def usual(self) -> Fault:
        return _GroupedLoad()

    def planted(self, program: Sizes) -> dict[str, Any]:
        call = {"op": "all_reduce", "dtype": "int32", "redop": "sum"}
        peers = super().sizes(program)
        return describe(
            self,
            program,
            "world",
            f"posts the {len(peers)} all_reduce of a group on world in the opposite order",
            odd={**call, "shape": [self.sizes(program)[0]]},
            peers={**call, "shape": [peers[0]]},
            extent=len(peers),
        )

    def sizes(self, program: Sizes) -> list[int]:
        return super().sizes(program)[::-1]


class _Ring(Fault):
    """Each rank sends a tensor to the next one, at the end of each step."""

    distance = 1

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

    name = "wrong_peer"
    kind = "p2p_mismatch"
    least_ranks = 3
    distance = 2

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


class CapturedCall(Fault):
    """The rank captures one call, as for a CUDA graph; its peers run it and wait.

    The processes, the record and the effect on the peers are real: the rank records the call and
    goes on, the call does not run, and they wait for it. CUDA is simulated: there is no graph, and
    the laboratory itself marks the call as captured and does not run it.
    """

    name = "captured_call"
    kind = "capture_mismatch"
    least_ranks = 3

    def planted(self, program: Sizes) -> dict[str, Any]:
        call = {"op": "all_reduce", "shape": [program.experts], "dtype": "int32", "redop": "sum"}
        return describe(
            self,
            program,
            "world",
            "captures the all_reduce on world at its end, which its peers run",
            odd={**call, "state": "scheduled"},
            peers=call,
        )

    def finish(self, engine: Engine) -> None:
        engine.gather_logits()
        with engine.world.capture():
            engine.count_load()

"""Faults in one parameter of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ncclscope.lab.faults.base import Fault, describe, fault_rows, hidden_reduction

if TYPE_CHECKING:
    import torch

    from ncclscope.lab.engine import Engine
    from ncclscope.lab.sizes import Sizes


class _WrongReduction(Fault):
    """Base class of faults that replace the all_reduce after the experts of one layer.

    Attributes:
        changed: Parameters that differ in the replacement.
    """

    least_tp = 2
    changed: ClassVar[dict[str, Any]]

    def odd(self, program: Sizes) -> dict[str, Any]:
        """Return the parameters of the replacement."""
        return {**hidden_reduction(program), **self.changed}

    def planted(self, program: Sizes) -> dict[str, Any]:
        odd, peers = self.odd(program), hidden_reduction(program)
        ((name, value),) = ((name, odd[name]) for name in odd if odd[name] != peers.get(name))
        return describe(
            self,
            program,
            "tp",
            f"posts {name} {value} on tp:0 in layer {program.fault_layer}, "
            f"its peers {peers.get(name)}",
            odd=odd,
            peers=peers,
        )

    def reduce_experts(self, engine: Engine, hidden: torch.Tensor, layer: int) -> None:
        if layer == engine.program.fault_layer:
            self.deviate(engine, hidden)
        else:
            engine.reduce_experts(hidden)

    def deviate(self, engine: Engine, hidden: torch.Tensor) -> None:
        """Post the replacement."""
        raise NotImplementedError


class WrongOp(_WrongReduction):
    """The rank posts an all_gather where its peers post an all_reduce."""

    name = "wrong_op"
    kind = "op_mismatch"
    changed: ClassVar[dict[str, Any]] = {"op": "all_gather"}

    def odd(self, program: Sizes) -> dict[str, Any]:
        odd = super().odd(program)
        del odd["redop"]
        return odd

    def deviate(self, engine: Engine, hidden: torch.Tensor) -> None:
        engine.tp.all_gather(hidden)


class WrongSize(_WrongReduction):
    """The rank posts an all_reduce with one row fewer.

    gloo ends the process that receives more data than fits its tensor, which is this rank.
    """

    name = "wrong_size"
    kind = "size_mismatch"

    def odd(self, program: Sizes) -> dict[str, Any]:
        shape = [fault_rows(program) - 1, program.hidden]
        return {**hidden_reduction(program), "shape": shape}

    def deviate(self, engine: Engine, hidden: torch.Tensor) -> None:
        engine.tp.all_reduce(hidden[:-1])


class WrongDtype(_WrongReduction):
    """The rank posts an all_reduce with another element type of the same width.

    Neither gloo nor NCCL detects it: the call completes with wrong sums.
    """

    name = "wrong_dtype"
    kind = "dtype_mismatch"
    changed: ClassVar[dict[str, Any]] = {"dtype": "float16"}

    def deviate(self, engine: Engine, hidden: torch.Tensor) -> None:
        import torch

        engine.tp.all_reduce(hidden.view(torch.float16))


class WrongRedop(_WrongReduction):
    """The rank takes the maximum where its peers take the sum.

    Neither gloo nor NCCL detects it: the call completes with a mixture of both.
    """

    name = "wrong_redop"
    kind = "redop_mismatch"
    changed: ClassVar[dict[str, Any]] = {"redop": "max"}

    def deviate(self, engine: Engine, hidden: torch.Tensor) -> None:
        engine.tp.all_reduce(hidden, "max")


class WrongRoot(Fault):
    """The rank expects a broadcast from another root than its peers.

    Depending on its position in the broadcast tree, ranks wait for it or all complete.
    """

    name = "wrong_root"
    kind = "root_mismatch"
    least_tp = 2

    def root(self, program: Sizes) -> int:
        """Return the wrong root: not the rank itself, if the replica has a third rank."""
        tp_rank = program.place(program.fault_rank)[1]
        return 2 if tp_rank == 1 and program.tp > 2 else 1

    def planted(self, program: Sizes) -> dict[str, Any]:
        peers = {"op": "broadcast", "shape": [fault_rows(program)], "dtype": "int32", "root": 0}
        root = self.root(program)
        return describe(
            self,
            program,
            "tp",
            f"broadcasts the schedule on tp:0 from root {root}, its peers from root 0",
            odd={**peers, "root": root},
            peers=peers,
        )

    def share_schedule(self, engine: Engine) -> None:
        engine.share_schedule(self.root(engine.program))


class StaleSizes(Fault):
    """The rank believes that another replica has one row fewer, and gathers accordingly.

    It posts every all_gatherv and reduce_scatterv of the step with other sizes than its peers. gloo
    ends this rank in the first of them, since it receives more data than fits its tensor; NCCL
    waits for ever.
    """

    name = "stale_sizes"
    kind = "split_mismatch"
    least_dp = 2

    def planted(self, program: Sizes) -> dict[str, Any]:
        call = {
            "op": "all_gatherv",
            "shape": [fault_rows(program), program.hidden],
            "dtype": "bfloat16",
        }
        sizes = [program.rows(program.fault_step, replica) for replica in range(program.dp)]
        own = self.believed(sizes, program.place(program.fault_rank)[0])
        return describe(
            self,
            program,
            "dp",
            f"posts all_gatherv on dp:0 with the sizes {_text(own)}, its peers with {_text(sizes)}",
            odd={**call, "sizes": own},
            peers={"op": "all_gatherv", "dtype": "bfloat16", "sizes": sizes},
        )

    def believed(self, sizes: list[int], replica: int) -> list[int]:
        """Return the wrong sizes: one row fewer for the replica after the rank's own."""
        other = (replica + 1) % len(sizes)
        return [rows - (index == other) for index, rows in enumerate(sizes)]

    def coordinate(self, engine: Engine) -> list[int]:
        return self.believed(engine.coordinate(), engine.dp_rank)


def _text(sizes: list[int]) -> str:
    return "[" + ",".join(map(str, sizes)) + "]"

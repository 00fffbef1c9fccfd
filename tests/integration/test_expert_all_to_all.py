"""Expert all-to-all: what a job exchanges by DeepEP is recorded and compared like collectives.

The ranks are real processes. There is no GPU here: ``deep_ep`` is a stand-in of the same modules,
classes and parameters (stand_ins/deep_ep) that exchanges tokens over gloo.
"""

from __future__ import annotations

import ast
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ncclscope import diagnose, open_run
from ncclscope.errors import InputError, NothingFoundError
from ncclscope.model import Finding, Run
from tests.integration.c10d_ranks import calls, fields, join, main, run_ranks, start

if __name__ != "__main__":  # a rank imports it later
    pytest.importorskip("torch")

STAND_INS = Path(__file__).parent / "stand_ins"
RANKS, DIVERGING = 4, 3
EXPERTS, HIDDEN = 8, 16
STEPS = 3
FIELDS = ("op", "shape", "dtype")


def library() -> Any:
    sys.path.insert(0, str(STAND_INS))
    import deep_ep

    return deep_ep


class Layer:
    """A layer of experts, on its own number of tokens on each rank."""

    def __init__(self, rank: int) -> None:
        import torch

        self.dist = join()
        self.buffer = library().Buffer(self.dist.group.WORLD)
        self.hidden = torch.full((rank + 2, HIDDEN), float(rank))
        self.ids = torch.arange(2 * (rank + 2)).view(-1, 2) * 3 % EXPERTS
        self.experts = EXPERTS

    def dispatch(self) -> tuple[Any, Any]:
        import torch

        chosen = torch.nn.functional.one_hot(self.ids // 2, RANKS).any(1)
        counts = torch.zeros(self.experts, dtype=torch.int)
        received, _, _, _, handle, _ = self.buffer.dispatch(
            self.hidden, num_tokens_per_expert=counts, is_token_in_rank=chosen
        )
        return received, handle

    def step(self) -> None:
        import torch

        received, handle = self.dispatch()
        combined, _, _ = self.buffer.combine(received, handle)
        holders = torch.tensor([len(set((row // 2).tolist())) for row in self.ids])
        assert torch.equal(combined, self.hidden * holders[:, None])
        self.dist.all_reduce(torch.ones(HIDDEN))


def exchange(rank: int) -> None:
    layer = Layer(rank)
    for _ in range(STEPS):
        layer.step()


def test_healthy_ranks_agree_and_each_call_is_recorded(rings: Path) -> None:
    run = run_ranks(__file__, "exchange", rings, size=RANKS)

    verdict = diagnose(run)
    assert (verdict.status, verdict.findings) == ("ok", ())
    step = [("dispatch", (EXPERTS, HIDDEN), "float32"), ("combine", (HIDDEN,), "float32")]
    for rank in run.ranks:
        assert rank.details["launches"] == {"deep_ep": {"sms": 20, "of": 0}}  # there is no GPU
        recorded = calls(rank, "world/deep_ep")
        assert [fields(one, *FIELDS) for one in recorded] == step * STEPS
        assert [one.site for one in recorded[:2]] == [
            line("received, _, _, _, handle, _ = ", "dispatch"),
            line("combined, _, _ = self", "step"),
        ]
        assert [one.op for one in calls(rank)] == ["all_reduce"] * STEPS  # nothing of gloo below
        # One order with the calls of torch.
        order = sorted([*recorded, *calls(rank)], key=lambda one: one.position)
        assert [one.op for one in order] == ["dispatch", "combine", "all_reduce"] * STEPS


def line(text: str, function: str) -> str:
    """Return the site of the only line of this file that begins with a text."""
    (number,) = [
        number
        for number, one in enumerate(Path(__file__).read_text().splitlines(), 1)
        if one.strip().startswith(text)
    ]
    return f"{Path(__file__).name}:{number} {function}"


def exchange_otherwise(rank: int) -> None:
    import torch

    layer = Layer(rank)
    low = library().Buffer(layer.dist.group.WORLD)
    hidden = layer.hidden.bfloat16()
    received, _, handle, _, _ = low.low_latency_dispatch(hidden, layer.ids, 8, EXPERTS)
    low.low_latency_combine(received, layer.ids, None, handle)
    elastic = library().ElasticBuffer(layer.dist.group.WORLD)
    received, _, _, kept, _ = elastic.dispatch(layer.hidden, layer.ids, num_experts=EXPERTS)
    elastic.combine(received, kept)
    elastic.dispatch(layer.hidden, handle=kept)
    scaled = (layer.hidden.half(), torch.ones(1))
    received, _, _, _, first, _ = layer.buffer.dispatch(
        scaled, is_token_in_rank=kept.chosen, num_tokens_per_expert=torch.zeros(EXPERTS)
    )
    layer.buffer.dispatch(layer.hidden, first)


def test_each_buffer_has_a_sequence_of_its_own(rings: Path) -> None:
    run = run_ranks(__file__, "exchange_otherwise", rings, size=RANKS)

    both = (EXPERTS, HIDDEN)
    for rank in run.ranks:
        assert [fields(one, *FIELDS) for one in calls(rank, "world/deep_ep")] == [
            ("dispatch", both, "float16"),
            ("dispatch", (HIDDEN,), "float32"),
        ]
        assert [fields(one, *FIELDS) for one in calls(rank, "world/deep_ep-2")] == [
            ("low_latency_dispatch", both, "bfloat16"),
            ("low_latency_combine", (HIDDEN,), "bfloat16"),
        ]
        assert [fields(one, *FIELDS) for one in calls(rank, "world/deep_ep-3")] == [
            ("dispatch", both, "float32"),
            ("combine", both, "float32"),
            ("dispatch", both, "float32"),
        ]
    assert diagnose(run).status == "ok"


def leave_out_a_dispatch(rank: int) -> None:
    layer = Layer(rank)
    layer.step()
    earlier = layer.dispatch()
    received, handle = earlier if rank == DIVERGING else layer.dispatch()
    layer.buffer.combine(received, handle)


def test_the_rank_that_leaves_out_a_dispatch_is_named(rings: Path) -> None:
    with hanging("leave_out_a_dispatch", rings, calls_of_each=5) as run:
        verdict = diagnose(run)

    cause = verdict.cause
    assert cause is not None
    assert (verdict.status, cause.kind, cause.diverging_ranks) == (
        "diverged",
        "op_mismatch",
        (DIVERGING,),
    )
    assert cause.confidence == "certain"
    assert "posted combine [16] float32 as call 4 on world/deep_ep of ranks 0-3" in cause.summary
    assert "ranks 0-2 posted dispatch [8,16] float32" in cause.summary
    assert sites(cause) == (
        line("layer.buffer.combine(", "leave_out_a_dispatch"),
        line("received, _, _, _, handle, _ = ", "dispatch"),
    )


def sites(cause: Finding) -> tuple[str | None, ...]:
    """Return the lines of the diverging rank and of its peers."""
    return tuple(call and call.site for call in (cause.odd, cause.peers))


def gather_instead(rank: int) -> None:
    import torch

    layer = Layer(rank)
    layer.step()
    if rank == DIVERGING:
        own = torch.ones(4)
        layer.dist.all_gather_into_tensor(torch.empty(4 * RANKS), own)
    layer.step()


def test_the_rank_that_gathers_where_its_peers_dispatch_is_named(rings: Path) -> None:
    with hanging("gather_instead", rings, calls_of_each=4) as run:
        verdict = diagnose(run, live_stall_seconds=0.0)

    cause = verdict.cause
    assert cause is not None
    assert (verdict.status, cause.kind, cause.diverging_ranks) == (
        "hung",
        "extra_call",
        (DIVERGING,),
    )
    assert cause.confidence == "likely"
    assert sites(cause)[0] == line("layer.dist.all_gather_into_tensor(", "gather_instead")
    assert any("dispatch [8,16]" in one for one in cause.evidence)
    assert cause.inferred[0] == "rank 3 waits in that call for the others"


def count_other_experts(rank: int) -> None:
    layer = Layer(rank)
    layer.step()
    layer.experts += 8 * (rank == DIVERGING)
    layer.dispatch()


def test_the_rank_with_another_number_of_experts_is_named(rings: Path) -> None:
    verdict = diagnose(run_ranks(__file__, "count_other_experts", rings, size=RANKS))

    cause = verdict.cause
    assert cause is not None
    assert (verdict.status, cause.kind, cause.diverging_ranks) == (
        *("diverged", "size_mismatch", (DIVERGING,)),
    )
    assert "posted dispatch [16,16] float32 as call 3 on world/deep_ep" in cause.summary
    assert "ranks 0-2 posted dispatch [8,16] float32" in cause.summary


def test_nothing_is_recorded_when_tracing_is_off(rings: Path) -> None:
    environment = {"NCCLSCOPE": "0", "UNTOUCHED": "1"}
    with pytest.raises(NothingFoundError):
        run_ranks(__file__, "compare_methods", rings, size=RANKS, environment=environment)


def compare_methods(rank: int) -> None:
    """Check whether methods have been replaced, and exchange tokens."""
    layer = Layer(rank)
    assert hasattr(type(layer.buffer).dispatch, "__wrapped__") is ("UNTOUCHED" not in os.environ)
    layer.step()


def test_tracing_replaces_methods(rings: Path) -> None:
    run = run_ranks(__file__, "compare_methods", rings, size=RANKS)
    assert [len(calls(rank, "world/deep_ep")) for rank in run.ranks] == [2] * RANKS


def import_before_torch(rank: int) -> None:
    assert ("torch" not in sys.modules) is (rank == 0)
    library()
    assert hasattr(library().ElasticBuffer.dispatch, "__wrapped__")
    Layer(rank).step()


def test_the_library_may_be_imported_before_torch(rings: Path) -> None:
    run = run_ranks(__file__, "import_before_torch", rings, size=RANKS, interpreters=(0,))
    assert [len(calls(rank, "world/deep_ep")) for rank in run.ranks] == [2] * RANKS


INSTALLED = find_spec("deep_ep")


@pytest.mark.skipif(INSTALLED is None, reason="needs DeepEP")
@pytest.mark.parametrize("name", ["legacy", "elastic"])
def test_the_stand_in_has_the_parameters_of_the_library(name: str) -> None:
    assert INSTALLED is not None
    (folder,) = INSTALLED.submodule_search_locations or ()
    stand_in = methods(STAND_INS / "deep_ep" / "buffers" / f"{name}.py")
    assert stand_in.items() <= methods(Path(folder) / "buffers" / f"{name}.py").items()


def methods(source: Path) -> dict[str, list[str]]:
    """Return the names of the parameters of each method for tokens, from the source."""
    found = [node for node in ast.walk(ast.parse(source.read_text())) if hasattr(node, "args")]
    return {
        node.name: [one.arg for one in node.args.args]
        for node in found
        if isinstance(node, ast.FunctionDef) and node.name.endswith(("dispatch", "combine"))
    }


def raise_in_a_call(rank: int) -> None:
    layer = Layer(rank)
    with pytest.raises(ValueError, match="neither a handle nor is_token_in_rank"):
        layer.buffer.dispatch(layer.hidden)
    layer.step()


def test_exceptions_of_the_library_pass(rings: Path) -> None:
    run = run_ranks(__file__, "raise_in_a_call", rings, size=RANKS)
    for rank in run.ranks:
        posted = [one.op for one in calls(rank, "world/deep_ep")]
        assert posted == ["dispatch", "dispatch", "combine"]


@contextlib.contextmanager
def hanging(function: str, rings: Path, *, calls_of_each: int) -> Iterator[Run]:
    """Run a function on all ranks until each has recorded its calls and hangs."""
    processes = [
        start(
            __file__,
            function,
            {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
                "MEETING_POINT": str(rings / "store"),
                "NCCLSCOPE_DIR": str(rings),
            },
        )
        for rank in range(RANKS)
    ]
    try:
        yield recorded(rings, calls_of_each)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def recorded(rings: Path, calls_of_each: int) -> Run:
    deadline = time.monotonic() + 60
    while True:
        counts: list[int] = []
        with contextlib.suppress(InputError):  # a ring is being created
            run = open_run(rings)
            counts = [sum(log.calls for log in rank.logs.values()) for rank in run.ranks]
        if counts == [calls_of_each] * RANKS:
            return run
        assert time.monotonic() < deadline, counts
        time.sleep(0.05)


if __name__ == "__main__":
    main(globals())

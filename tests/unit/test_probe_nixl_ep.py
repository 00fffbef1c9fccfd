"""NIXL EP's buffers: the Python of the library is real, and what it calls in C++ does nothing.

There is no GPU here, and without one the library's C++ part cannot be loaded.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ncclscope import diagnose
from ncclscope_patches.probes.expert_all_to_all import NixlEpProbe
from tests.integration.c10d_ranks import calls, fields, join, main, run_ranks

pytestmark = pytest.mark.vllm
pytest.importorskip("torch")

EXPERTS, HIDDEN = 8, 16
_RESULTS = {"dispatch": 7, "combine": 3, "ht_dispatch": 15, "ht_combine": 3}
"""Number of values that functions in C++ return."""


class Runtime:
    """In the place of the C++ part: takes everything and does nothing."""

    def __init__(self, *_args: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: (None,) * _RESULTS.get(name, 0)


def buffers() -> Any:
    """Return the library's module of buffers, over a C++ part that does nothing."""
    found = find_spec("nixl_ep_cu13")
    assert found is not None
    package = ModuleType("nixl_ep_cu13")
    package.__path__ = list(found.submodule_search_locations or ())
    native = ModuleType("nixl_ep_cu13.nixl_ep_cpp")
    vars(native).update(Buffer=Runtime, Config=Runtime, EventHandle=Runtime)
    sys.modules.update({package.__name__: package, native.__name__: native})
    package.nixl_ep_cpp = native  # type: ignore[attr-defined]
    return import_module("nixl_ep_cu13.buffer")


def check_parameters(cls: Any) -> None:
    for name in NixlEpProbe.methods:
        parameters = list(signature(getattr(cls, name)).parameters)
        assert parameters[:2] == ["self", "x"]
    assert "num_experts" in signature(cls.low_latency_dispatch).parameters
    assert "num_tokens_per_expert" in signature(cls.ht_dispatch).parameters


def exchange(rank: int) -> None:
    import torch

    dist = join()
    library = buffers()
    check_parameters(library.Buffer)
    # As vLLM does: without a process group.
    buffer = library.Buffer(rank=rank, tcp_store_group=None)
    buffer.update_memory_buffers(dist.get_world_size(), EXPERTS // 2, 1 << 20)
    hidden, ids = torch.ones(rank + 1, HIDDEN).bfloat16(), torch.zeros(rank + 1, 2).long()
    buffer.dispatch(hidden, ids, 8, EXPERTS, use_fp8=False, return_recv_hook=True)
    handle = torch.zeros(1), torch.zeros(1), 8, HIDDEN
    buffer.combine(torch.ones(4, 16, HIDDEN), ids, torch.ones(rank + 1, 2), handle)
    throughput = library.Buffer(rank=rank, low_latency_mode=False, group=dist.group.WORLD)
    throughput.update_memory_buffers(dist.get_world_size(), EXPERTS // 2, 1 << 20)
    counts = torch.zeros(EXPERTS)
    throughput.ht_dispatch(
        (hidden, torch.ones(1)),
        num_tokens_per_rank=counts,
        is_token_in_rank=counts,
        num_tokens_per_expert=counts,
    )
    throughput.ht_combine(hidden, (None,) * 10)


def test_its_calls_are_recorded_at_the_line_of_the_program(rings: Path) -> None:
    run = run_ranks(__file__, "exchange", rings)

    lines = Path(__file__).read_text().splitlines()
    for rank in run.ranks:
        recorded = calls(rank, "world/nixl_ep")
        assert [fields(one, "op", "shape", "dtype") for one in recorded] == [
            ("low_latency_dispatch", (EXPERTS, HIDDEN), "bfloat16"),
            ("low_latency_combine", (HIDDEN,), "float32"),
        ]
        (dispatched,) = [
            number
            for number, text in enumerate(lines, 1)
            if text.endswith("use_fp8=False, return_recv_hook=True)")
        ]
        assert recorded[0].site == f"{os.path.basename(__file__)}:{dispatched} exchange"
        assert [fields(one, "op", "shape", "dtype") for one in calls(rank, "world/nixl_ep-2")] == [
            ("dispatch", (EXPERTS, HIDDEN), "bfloat16"),
            ("combine", (HIDDEN,), "bfloat16"),
        ]
        assert "unseen" not in rank.details
    assert diagnose(run).status == "ok"


def exchange_with_few(rank: int) -> None:
    import torch

    join()
    buffer = buffers().Buffer(rank=rank, tcp_store_group=None)
    buffer.update_memory_buffers(8, EXPERTS // 8, 1 << 20)
    buffer.dispatch(torch.ones(1, HIDDEN), torch.zeros(1, 2).long(), 8, EXPERTS)


def test_a_buffer_whose_ranks_are_unknown_is_listed_as_not_recorded(rings: Path) -> None:
    run = run_ranks(__file__, "exchange_with_few", rings)

    for rank in run.ranks:
        (entry,) = rank.details["unseen"]
        assert entry["kind"] == "nixl_ep"
    assert "nixl_ep exchanges tokens without a torch group" in " ".join(
        diagnose(run).coverage.unseen
    )


if __name__ == "__main__":
    main(globals())

"""Prefix hits that are of no use, since the routing of their tokens is lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ncclscope_patches.vllm.routing import blocks

EMPTY = object()


class Manager:
    """A KV cache of two groups of blocks, as vLLM 0.33 has it, and with fewer results before."""

    empty_kv_cache_blocks = EMPTY

    def __init__(self, results: int) -> None:
        self.results = results
        self.limits: list[int | None] = []

    def get_computed_blocks(self, request: str, limit: int | None = None) -> Any:
        assert request == "request"
        self.limits.append(limit)
        groups = tuple([SimpleNamespace(block_id=10 * g + n) for n in range(2)] for g in range(2))
        return (SimpleNamespace(blocks=groups), 32, 7)[: self.results]


@pytest.mark.parametrize("results", [2, 3])
@pytest.mark.parametrize(
    ("group", "lost", "kept"),
    [(1, set(), True), (1, {11}, False), (1, {0, 1}, True), (0, {1}, False), (None, set(), False)],
)
def test_a_hit_is_used_only_where_its_routing_is_known(
    group: int | None, lost: set[int], kept: bool, results: int
) -> None:
    manager = Manager(results)
    usual = manager.get_computed_blocks("request", 40)

    blocks.without_lost_hits(manager, group, lost.__contains__)
    found = manager.get_computed_blocks("request", 40)

    assert manager.limits == [40, 40]
    assert found[1:] == (usual[1:] if kept else (0,) * (results - 1))
    assert (found[0] is EMPTY) == (not kept)


def test_an_error_leaves_the_hit(capsys: pytest.CaptureFixture[str]) -> None:
    manager = Manager(3)

    def fail(_block: int) -> bool:
        raise RuntimeError("broken")

    blocks.without_lost_hits(manager, 0, fail)

    assert manager.get_computed_blocks("request")[1] == 32

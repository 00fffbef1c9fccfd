"""Members of a group agree on a mode before it changes what they post: real processes, on gloo."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ncclscope
from ncclscope import diagnose
from ncclscope.launch.rank_process import free_port
from tests.integration.c10d_ranks import calls, main, run_ranks

SIZE = 3
WHAT = "NCCLSCOPE_EXAMPLE"
SHORT = 1.0


def begin(rank: int) -> Any:
    """Join the group over a TCP store, as jobs do; what this rank prints goes to a file."""
    import torch.distributed as dist

    errors = os.open(Path(os.environ["WARNINGS"], f"warnings-{rank}.txt"), os.O_CREAT | os.O_WRONLY)
    os.dup2(errors, 2)
    dist.init_process_group("gloo", init_method=os.environ["STORE"], rank=rank, world_size=SIZE)
    return dist


def ask(mode: str, wait: float = 30.0) -> bool:
    """Ask in the group of all ranks, and check that a second question has the same answer."""
    import torch.distributed as dist

    from ncclscope_patches.vllm.group_mode import agreed

    assert dist.group.WORLD is not None
    found = [agreed(dist.group.WORLD, WHAT, mode, otherwise="off", wait=wait) for _ in range(2)]
    assert found[0] == found[1]
    return found[0]


def same(rank: int) -> None:
    begin(rank)
    assert ask("fixed")


def other_mode(rank: int) -> None:
    begin(rank)
    assert not ask("checked" if rank == 1 else "fixed")


def other_version(rank: int) -> None:
    begin(rank)
    if rank == 2:
        ncclscope.__version__ = "0.0.7"
    assert not ask("fixed")


def without_the_switch(rank: int) -> None:
    begin(rank)
    if rank != 1:
        assert not ask("fixed", wait=SHORT)


def too_late(rank: int) -> None:
    dist = begin(rank)
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["decided"])
    assert not ask("fixed", wait=SHORT)
    store.set("decided", "1")


def subgroups(rank: int) -> None:
    dist = begin(rank)
    from ncclscope_patches.vllm.group_mode import agreed

    for ranks in ([0, 1], [1, 2]):
        group = dist.new_group(ranks)
        if rank in ranks:
            mode = "checked" if rank == 0 else "fixed"
            assert agreed(group, WHAT, mode, otherwise="off") == (ranks == [1, 2])


def stateless(rank: int) -> None:
    import types

    dist = begin(rank)
    from ncclscope_patches.vllm.group_mode import agreed

    store = dist.PrefixStore("other", dist.distributed_c10d._get_default_store())
    group = types.SimpleNamespace(store=store, rank=rank, world_size=SIZE)
    assert agreed(group, WHAT, "fixed", otherwise="off")
    with pytest.raises(NotImplementedError, match="no store"):
        agreed(object(), WHAT, "fixed", otherwise="off")


def warnings_of(tmp_path: Path, function: str) -> list[str]:
    """Run a function on all ranks; return the lines about the mode."""
    where = {"STORE": f"tcp://127.0.0.1:{free_port()}", "WARNINGS": str(tmp_path)}
    run = run_ranks(__file__, function, tmp_path, size=SIZE, environment=where)
    assert diagnose(run).status in ("ok", "unknown")
    assert {call.op for rank in run.ranks for call in calls(rank)} <= {"barrier"}
    switches = {str(rank.details.get("switches", {}).get(WHAT, "")) for rank in run.ranks}
    texts = [file.read_text() for file in sorted(tmp_path.glob("warnings-*.txt"))]
    assert len(texts) == SIZE
    assert all(not text or any(text in one for one in texts) for text in switches)
    assert switches - {""}
    return [line for text in texts for line in text.splitlines() if WHAT in line]


@pytest.mark.parametrize("function", ["same", "stateless"])
def test_members_with_the_same_mode_switch_it_on(tmp_path: Path, function: str) -> None:
    (line,) = warnings_of(tmp_path, function)

    assert line == f"ncclscope: {WHAT}=fixed is in effect: ranks 0-2 have agreed on it"


@pytest.mark.parametrize(
    ("function", "who"),
    [
        ("other_mode", "ranks 0 2: fixed, ncclscope {0}; rank 1: checked, ncclscope {0}"),
        ("other_version", "ranks 0 1: fixed, ncclscope {0}; rank 2: fixed, ncclscope 0.0.7"),
        (
            "without_the_switch",
            "ranks 0 2: fixed, ncclscope {0}; rank 1: not set (nothing in 1 s)",
        ),
        pytest.param(
            "too_late",
            "ranks 0 2: fixed, ncclscope {0}; rank 1: not set (nothing in 1 s)",
            marks=pytest.mark.slow,
        ),
        ("subgroups", "rank 0: checked, ncclscope {0}; rank 1: fixed, ncclscope {0}"),
    ],
)
def test_members_that_differ_all_leave_it_off_and_one_says_why(
    tmp_path: Path, function: str, who: str
) -> None:
    (line,) = (line for line in warnings_of(tmp_path, function) if "off: " in line)

    text = who.format(ncclscope.__version__)
    assert line == f"ncclscope: off: {WHAT} must be the same on all ranks; {text}"


def served(function: Callable[[int], None]) -> Callable[[int], None]:
    """Keep rank 0, which serves the store, until all ranks have finished."""

    def call(rank: int) -> None:
        import torch.distributed as dist

        function(rank)
        dist.barrier()

    return call


if __name__ == "__main__":
    main({name: served(value) for name, value in globals().items() if callable(value)})

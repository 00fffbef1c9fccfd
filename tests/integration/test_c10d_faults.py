"""Whatever breaks in a probe, the program's call is made once and its outcome is its own.

Each hook is broken in each way, in a process of its own. Below the probe, a counter sees what
reaches torch; torch's fake backend takes the place of the other ranks.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.c10d_ranks import TORCH, start

pytest.importorskip("torch")

Result = dict[str, Any]


class Trouble(Exception):
    """What a broken probe raises."""


def trouble(*_arguments: Any, **_named: Any) -> Any:
    raise Trouble("asked for by the test")


class Calls:
    """Posts with each method and operator that is traced."""

    def __init__(self, dist: Any) -> None:
        self.dist = dist
        self.group = dist.group.WORLD

    def methods(self) -> dict[str, Callable[[], Any]]:
        group, one, two = self.group, ones(2), [ones(2), ones(2)]
        posted = {
            "_allgather_base": lambda: group._allgather_base(ones(4), one),
            "_reduce_scatter_base": lambda: group._reduce_scatter_base(one, ones(4)),
            "all_gather_single": lambda: group.all_gather_single(ones(4), one),
            "all_gather_single_coalesced": lambda: group.all_gather_single_coalesced(
                [ones(4)], [one]
            ),
            "all_to_all_single": lambda: group.all_to_all_single(one, one, [], []),
            "allgather": lambda: group.allgather([two], [one]),
            "allgather_coalesced": lambda: group.allgather_coalesced([two], [one]),
            "allgather_into_tensor_coalesced": lambda: group.allgather_into_tensor_coalesced(
                [ones(4)], [one]
            ),
            "allreduce": lambda: group.allreduce([one]),
            "allreduce_coalesced": lambda: group.allreduce_coalesced([one]),
            "alltoall": lambda: group.alltoall(two, two),
            "alltoall_base": lambda: group.alltoall_base(one, one, [], []),
            "barrier": lambda: group.barrier(),
            "broadcast": lambda: group.broadcast([one]),
            "gather": lambda: group.gather([two], [one]),
            "monitored_barrier": lambda: group.monitored_barrier(),
            "recv": lambda: group.recv([one], 1, 0),
            "recv_anysource": lambda: group.recv_anysource([one], 0),
            "reduce": lambda: group.reduce([one]),
            "reduce_scatter": lambda: group.reduce_scatter([one], [two]),
            "reduce_scatter_single": lambda: group.reduce_scatter_single(one, ones(4)),
            "reduce_scatter_single_coalesced": lambda: group.reduce_scatter_single_coalesced(
                [one], [ones(4)]
            ),
            "reduce_scatter_tensor_coalesced": lambda: group.reduce_scatter_tensor_coalesced(
                [one], [ones(4)]
            ),
            "scatter": lambda: group.scatter([one], [two]),
            "send": lambda: group.send([one], 1, 0),
        }
        return {name: call for name, call in posted.items() if hasattr(group, name)}

    def operators(self) -> dict[str, Callable[[], Any]]:
        found, name = operators(), self.group.group_name
        one, many = ones(2), [ones(2), ones(3)]
        posted = {
            "all_gather_into_tensor": lambda: found.all_gather_into_tensor(one, 2, name),
            "all_gather_into_tensor_coalesced": lambda: found.all_gather_into_tensor_coalesced(
                many, 2, name
            ),
            "all_gather_into_tensor_out": lambda: found.all_gather_into_tensor_out(
                one, 2, name, out=ones(4)
            ),
            "all_reduce": lambda: found.all_reduce(one, "sum", name),
            "all_reduce_": lambda: found.all_reduce_(one, "sum", name),
            "all_reduce_coalesced": lambda: found.all_reduce_coalesced(many, "sum", name),
            "all_reduce_coalesced_": lambda: found.all_reduce_coalesced_(many, "sum", name),
            "all_to_all_single": lambda: found.all_to_all_single(one, [1, 1], [1, 1], name),
            "broadcast": lambda: found.broadcast(one, 1, name),
            "broadcast_": lambda: found.broadcast_(one, 1, name),
            "reduce_scatter_tensor": lambda: found.reduce_scatter_tensor(ones(4), "sum", 2, name),
        }
        if hasattr(found, "isend"):
            posted |= {
                "isend": lambda: found.isend(one, 1, 0, name),
                "irecv": lambda: found.irecv(one, 1, 0, name),
                "batch_p2p_ops": lambda: found.batch_p2p_ops(
                    ["isend", "irecv"], [1, 1], [0, 0], [one, ones(2)], name
                ),
            }
        return posted


def ones(*shape: int) -> Any:
    import torch

    return torch.ones(*shape)


def operators() -> Any:
    import torch

    return torch.ops._c10d_functional


# What breaks: something that every call, or every new communicator, passes.
FAULTS: dict[str, Callable[[], None]] = {
    "no fault": lambda: None,
    "communicator": lambda: break_tracer("communicator"),
    "template": lambda: break_tracer("template"),
    "post": lambda: break_tracer("post"),
    "post_p2p": lambda: break_ring("post_p2p"),
}


def break_tracer(name: str) -> None:
    from ncclscope.tracing import session

    setattr(session.current(), name, trouble)


def break_ring(name: str) -> None:
    from ncclscope.tracing import session

    tracer = session.current()
    assert tracer is not None
    setattr(tracer.ring, name, trouble)


def break_each_hook(rank: int) -> None:
    import torch.distributed as dist
    from torch.testing._internal.distributed import fake_pg

    from ncclscope_patches import registry

    dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=2)
    importlib.import_module("torch.distributed._functional_collectives")  # has the operators
    calls = Calls(dist)
    counts: dict[str, int] = {}
    for name in (*calls.methods(), "_start_coalescing", "_end_coalescing"):
        count(dist.ProcessGroup, name, counts, name)
    for name in (*calls.operators(), "wait_tensor"):
        count(getattr(operators(), name), "_op", counts, f"operator {name}")
    count(dist.Work, "wait", counts, "wait")
    count(dist.Work, "is_completed", counts, "is_completed")
    os.environ["NCCLSCOPE_DIR"] = os.environ["LATER"]
    registry.apply_all()

    def report(name: str, fault: str, break_it: Callable[[], Any], call: Callable[[], Any]) -> None:
        print(json.dumps({"name": name, "fault": fault} | in_child(name, break_it, call, counts)))

    for fault, break_it in FAULTS.items():
        for name, call in calls.methods().items():
            report(name, fault, break_it, call)
        for name, call in calls.operators().items():
            report(f"operator {name}", fault, break_it, call)
    for name, fault, break_it, call in other_hooks(dist):
        report(name, fault, break_it, call)


def other_hooks(dist: Any) -> Iterator[tuple[str, str, Callable[[], Any], Callable[[], Any]]]:
    """Hooks that post nothing: for each, something it uses is broken."""
    from ncclscope.tracing import scope, session
    from ncclscope_patches.probes import group_creation, process_groups, works

    group = dist.group.WORLD
    work = group.allreduce([ones(2)])
    result = operators().all_reduce(ones(2), "sum", group.group_name)
    device = ones(1).device

    def broken(owner: Any, name: str) -> Callable[[], None]:
        return lambda: setattr(owner, name, trouble)

    def broken_tracer(name: str) -> Callable[[], None]:
        return lambda: break_tracer(name)

    def broken_entry() -> None:
        works.pending[id(work)] = ()  # type: ignore[assignment]

    yield "wait", "pending", broken_entry, lambda: dist.Work.wait(work)
    yield "is_completed", "find", broken(works, "find"), lambda: dist.Work.is_completed(work)
    yield (
        "operator wait_tensor",
        "find",
        broken(works, "find"),
        lambda: operators().wait_tensor(result),
    )
    yield "allreduce", "expect", broken(works, "_prune"), lambda: overflow(group)
    if TORCH >= (2, 7):
        yield (
            "_start_coalescing",
            "enter_group",
            broken(scope, "enter_group"),
            lambda: group._start_coalescing(device),
        )
        yield (
            "_end_coalescing",
            "leave_group",
            broken(scope, "leave_group"),
            lambda: group._end_coalescing(device),
        )
    for name in ("begin", "end"):
        yield (
            "new_group",
            name,
            broken(group_creation, name),
            lambda: dist.new_group([1], use_local_synchronization=False),
        )
    for name in ("declare", "handles"):
        yield "new_group", name, broken(process_groups, name), lambda: dist.new_group([0, 1])
    yield "new_group", "communicator", broken_tracer("communicator"), lambda: dist.new_group([0, 1])
    yield "new_group", "session", broken(session, "current"), lambda: dist.new_group([0, 1])


def overflow(group: Any) -> Any:
    """Post when the table of works is full."""
    from ncclscope_patches.probes import works

    for number in range(works.LIMIT):
        works.pending[number] = (lambda: None, None)  # type: ignore[assignment]
    return group.allreduce([ones(2)])


def count(owner: Any, name: str, counts: dict[str, int], label: str) -> None:
    function = getattr(owner, name)

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        counts[label] = counts.get(label, 0) + 1
        return function(*args, **kwargs)

    setattr(owner, name, counted)


def in_child(
    name: str, break_it: Callable[[], Any], call: Callable[[], Any], counts: dict[str, int]
) -> Result:
    """Break something and call twice, in a forked process, which has a tracer of its own."""
    sys.stdout.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with tempfile.TemporaryFile() as warnings:
                os.dup2(warnings.fileno(), 2)
                counts.clear()
                break_it()
                outcomes = [outcome(call), outcome(call)]
                sys.stderr.flush()
                warnings.seek(0)
                text = warnings.read().decode()
            answer = {"outcomes": outcomes, "calls": counts.get(name, 0), "warnings": text}
            os.write(writing, json.dumps(answer).encode())
            status = 0
        except BaseException:
            os.write(writing, json.dumps({"error": traceback.format_exc()}).encode())
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as file:
        answer = json.loads(file.read())
    os.waitpid(child, 0)
    return dict(answer)


def outcome(call: Callable[[], Any]) -> str:
    try:
        value = call()
    except Exception as error:
        return f"{type(error).__name__}: {error}, after {error.__context__!r}"
    return type(value).__name__


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    environment = {
        "LATER": str(tmp_path_factory.mktemp("rings")),
        "NCCLSCOPE_DIR": "",
        "NCCLSCOPE_RECORDS": "1024",
    }
    process = start(__file__, "break_each_hook", environment)
    output, _ = process.communicate(timeout=110)
    assert process.returncode == 0, output
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def test_every_call_is_made_once_and_has_its_own_outcome(results: list[Result]) -> None:
    whole = {one["name"]: one["outcomes"] for one in results if one["fault"] == "no fault"}
    assert len(whole) > 30
    for one in results:
        assert "error" not in one, one["error"]
        assert one["outcomes"] == whole.get(one["name"], one["outcomes"]), one
        assert "Trouble" not in "".join(one["outcomes"]), one
        # Those that torch's fake backend has not are asked for as often, and refuse.
        assert one["calls"] == (0 if one["name"] == "new_group" else 2), one


def test_every_fault_is_reported_once(results: list[Result]) -> None:
    for one in results:
        warnings = one["warnings"].count("ncclscope:")
        if one["fault"] in ("post", "post_p2p"):
            assert warnings == ((one["name"] in MESSAGES) == (one["fault"] == "post_p2p")), one
        else:
            assert warnings == (one["fault"] != "no fault"), one


MESSAGES = {
    "send",
    "recv",
    "recv_anysource",
    "operator isend",
    "operator irecv",
    "operator batch_p2p_ops",
}


if __name__ == "__main__":
    break_each_hook(0)

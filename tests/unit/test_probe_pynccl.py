"""vLLM's own PyNcclCommunicator, over a stand-in for NCCL: what is posted is what is recorded.

The class is vLLM's. The library below it is tests/integration/nccl_stand_in.c, which moves no
data: there is no GPU here. It counts the calls that reach it, and fails on request.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ncclscope import native, open_run
from ncclscope.model import Run
from tests.integration.c10d_ranks import ROOT, calls, fields, join, main, messages, run_ranks, start

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

SOURCE = ROOT / "tests" / "integration" / "nccl_stand_in.c"
LIBRARY = "NCCL_STAND_IN"

Fields = dict[str, Any]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The stand-in, compiled; as the variable by which the programs below find it."""
    path = tmp_path_factory.mktemp("nccl") / "libnccl_stand_in.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, SOURCE], check=True)
    return {LIBRARY: str(path)}


class Stream:
    """A stand-in for a CUDA stream."""

    cuda_stream = 0

    def synchronize(self) -> None:
        pass


def import_pynccl() -> Any:
    import vllm.distributed.device_communicators.pynccl as pynccl

    pynccl.current_stream = Stream
    return pynccl


def stand_in() -> Any:
    found = ctypes.CDLL(os.environ[LIBRARY])
    found.nccl_stand_in_calls.restype = ctypes.c_uint64
    return found


def connect(group: Any) -> Any:
    return import_pynccl().PyNcclCommunicator(group, "cpu", os.environ[LIBRARY])


def ones(*shape: int) -> Any:
    import torch

    return torch.ones(*shape)


def call(op: str, *shape: int, **other: Any) -> Fields:
    """Fields of a float32 call that was posted outside of any group."""
    return {"op": op, "shape": shape, "dtype": "float32", "group": None} | other


WARM_UP = call("all_reduce", 1, redop="sum")

# What each rank posts on its communicator, and what must have been recorded of it: the same
# on both ranks, or a list for each.
Case = tuple[Callable[[Any, int], Any], list[Fields] | tuple[list[Fields], list[Fields]]]

CASES: list[Case] = [
    (
        lambda comm, rank: comm.all_reduce(ones(4, 2)),
        [call("all_reduce", 4, 2, redop="sum", numel=8, root=None, sizes=None)],
    ),
    (
        lambda comm, rank: comm.all_reduce(in_tensor=ones(3).bfloat16(), op=redop("MAX")),
        [call("all_reduce", 3, dtype="bfloat16", redop="max")],
    ),
    (
        lambda comm, rank: comm.all_reduce(ones(3), ones(3), redop("AVG"), Stream()),
        [call("all_reduce", 3, redop="avg")],
    ),
    (
        lambda comm, rank: comm.all_gather(ones(4, 3), ones(2, 3)),
        [call("all_gather", 2, 3, redop=None)],
    ),
    (
        lambda comm, rank: comm.all_gather(output_tensor=ones(4), input_tensor=ones(2)),
        [call("all_gather", 2)],
    ),
    (
        lambda comm, rank: comm.all_gatherv(ones(5, 2), ones(2 + rank, 2), [2, 3]),
        (
            [call("all_gatherv", 2, 2, sizes=(2, 3))],
            [call("all_gatherv", 3, 2, sizes=(2, 3))],
        ),
    ),
    (
        lambda comm, rank: comm.reduce_scatter(ones(2), ones(4)),
        [call("reduce_scatter", 4, redop="sum")],
    ),
    (
        lambda comm, rank: comm.reduce_scatterv(
            ones(2 + rank, 2), ones(5, 2), sizes=[2, 3], op=redop("MIN")
        ),
        [call("reduce_scatterv", 5, 2, sizes=(2, 3), redop="min")],
    ),
    (
        lambda comm, rank: comm.reduce(ones(4), ones(4), 1, redop("PRODUCT")),
        [call("reduce", 4, redop="product", root=1)],
    ),
    (
        lambda comm, rank: comm.scatter(ones(2 + rank, 2), ones(5, 2), [2, 3], 1),
        (
            [call("scatterv", 2, 2, sizes=(2, 3), root=1, out_shape=(2, 2))],
            [call("scatterv", 5, 2, sizes=(2, 3), root=1, out_shape=(3, 2))],
        ),
    ),
    (
        lambda comm, rank: comm.broadcast(ones(6), 1),
        [call("broadcast", 6, root=1, redop=None)],
    ),
    (lambda comm, rank: comm.suspend(), [{"op": "suspend", "shape": None}]),
    (lambda comm, rank: comm.suspend(), []),
    (lambda comm, rank: comm.resume(), [{"op": "resume", "shape": None}]),
    (lambda comm, rank: comm.resume(), []),
    (
        lambda comm, rank: comm.deregister_comm_window(comm.register_comm_window(ones(4))),
        [{"op": "register_window", "shape": None, "numel": 16}],
    ),
    (
        lambda comm, rank: comm.register_comm_window_raw(0, 64),
        [{"op": "register_window", "shape": None, "numel": 64}],
    ),
    (
        lambda comm, rank: while_switched_off(comm, lambda: comm.all_reduce(ones(99))),
        [],
    ),
]


def redop(name: str) -> Any:
    import torch.distributed as dist

    return getattr(dist.ReduceOp, name)


def while_switched_off(comm: Any, post: Callable[[], Any]) -> None:
    comm.disabled = True
    assert post() is None
    comm.disabled = False


def post_everything(rank: int) -> None:
    dist = join()
    comm = connect(named_group(dist, "dp:0"))
    for post, _ in CASES:
        post(comm, rank)
    exchange_messages(dist, rank)
    # An error in the place of a hang: both happen inside ncclCommInitRank.
    stand_in().nccl_stand_in_fail(b"ncclCommInitRank")
    with pytest.raises(RuntimeError, match="failure asked for by the test"):
        connect(named_group(dist, "ep:0"))


def named_group(dist: Any, name: str) -> Any:
    """Return a group named as vLLM names those that it makes an NCCL communicator for."""
    from ncclscope_patches.probes import process_groups

    group = dist.new_group([0, 1], backend="gloo")
    process_groups.name(group, name + process_groups.CPU_SUFFIX)
    return group


def exchange_messages(dist: Any, rank: int) -> None:
    group = named_group(dist, "tp:0")
    comm = connect(group)
    other = 1 - rank
    comm.send(ones(3), other)
    comm.recv(tensor=ones(4), src=other)
    comm.group_start()
    comm.send(ones(5), dst=other)
    comm.recv(ones(5), other)
    comm.group_start()
    comm.send(ones(6), other)
    comm.group_end()
    comm.group_end()
    batch = [
        dist.P2POp(dist.isend, ones(7), other, group=group),
        dist.P2POp(dist.irecv, ones(7), other, group=group),
    ]
    comm.batch_isend_irecv(batch)
    comm.send(ones(8), other)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory, library: dict[str, str]) -> Run:
    rings = tmp_path_factory.mktemp("rings")
    return run_ranks(__file__, "post_everything", rings, environment=library)


@pytest.mark.parametrize("rank", [0, 1])
def test_each_method_is_recorded_once_with_its_parameters(everything: Run, rank: int) -> None:
    recorded = calls(everything.by_rank[rank], "dp:0")
    expected = [WARM_UP]
    for _, found in CASES:
        expected += found[rank] if isinstance(found, tuple) else found

    assert [
        {name: getattr(one, name) for name in (expected[place] if place < len(expected) else [])}
        for place, one in enumerate(recorded)
    ] == expected


def test_members_share_keys_and_agree(everything: Run) -> None:
    connected = {
        comm.label: comm for key, comm in everything.communicators.items() if key[:5] == "nccl:"
    }

    assert sorted(connected) == ["dp:0", "ep:0", "tp:0"]
    for comm in connected.values():
        first, second = (rank.logs[comm.key] for rank in everything.ranks)
        assert (comm.ranks, comm.backend) == ((0, 1), "nccl")
        assert first.signatures(1, first.calls + 1) == second.signatures(1, second.calls + 1)


def test_scatter_is_one_call_and_no_messages(everything: Run) -> None:
    assert messages(everything.by_rank[0], "dp:0") == ()


def test_site_is_where_the_program_called(everything: Run) -> None:
    sites = {one.site for one in calls(everything.by_rank[0], "dp:0")}

    assert [site for site in sites if not str(site).startswith("test_probe_pynccl.py:")] == []


def test_messages_carry_their_peer_and_group(everything: Run) -> None:
    for rank in everything.ranks:
        found = messages(rank, "tp:0")
        other = 1 - rank.rank
        first = found[2].group
        assert first is not None
        assert [fields(one, "op", "shape", "peer", "group") for one in found] == [
            ("send", (3,), other, None),
            ("recv", (4,), other, None),
            ("send", (5,), other, first),
            ("recv", (5,), other, first),
            ("send", (6,), other, first),
            ("send", (7,), other, first + 1),
            ("recv", (7,), other, first + 1),
            ("send", (8,), other, None),
        ]


def test_communicator_is_known_before_nccl_connects(everything: Run) -> None:
    for rank in everything.ranks:
        assert calls(rank, "ep:0") == []


def make_without_a_group(rank: int) -> None:
    """One process is enough: the stand-in waits for nobody."""
    from vllm.distributed.utils import StatelessProcessGroup

    pynccl = import_pynccl()
    where = os.environ[LIBRARY]
    shared = bytes(range(128))
    comm = pynccl.PyNcclCommunicator.from_unique_id_bytes(shared, 0, 2, "cpu", where)
    comm.all_reduce(ones(2))
    alone = pynccl.PyNcclCommunicator.from_unique_id_bytes(shared, 0, 1, "cpu", where)
    assert alone.all_reduce(ones(3)) is None

    class Group(StatelessProcessGroup):
        def __init__(self) -> None:
            self.rank, self.world_size = 0, 2

        def broadcast_obj(self, obj: Any, src: int) -> Any:
            return obj

    pynccl.PyNcclCommunicator(Group(), "cpu", where).all_reduce(ones(4))


def test_communicators_without_a_process_group_are_recorded(
    rings: Path, library: dict[str, str]
) -> None:
    rank = run_alone("make_without_a_group", rings, library)

    shapes = [[one.shape for one in log.span(1, log.calls + 1)] for log in rank.logs.values()]
    assert shapes == [[(1,), (2,)], [(1,), (4,)]]
    assert {log.communicator.ranks for log in rank.logs.values()} == {()}


def run_alone(function: str, rings: Path, environment: dict[str, str]) -> Any:
    process = start(__file__, function, {"NCCLSCOPE_DIR": str(rings), **environment})
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    run = open_run(rings)
    (rank,) = (*run.ranks, *run.others)
    return rank


def break_each_method(rank: int) -> None:
    import torch.distributed as dist

    from ncclscope.tracing import scope, session

    pynccl = import_pynccl()
    nccl = stand_in()
    cls = pynccl.PyNcclCommunicator
    where = os.environ[LIBRARY]

    def make() -> Any:
        return cls.from_unique_id_bytes(bytes(range(128)), 0, 2, "cpu", where)

    comm = make()
    message = SimpleNamespace(op=dist.isend, tensor=ones(2), group_peer=1)
    posts: dict[str, tuple[Callable[[], Any], str]] = {
        "all_reduce": (lambda: comm.all_reduce(ones(2)), "ncclAllReduce"),
        "all_gather": (lambda: comm.all_gather(ones(4), ones(2)), "ncclAllGather"),
        "all_gatherv": (lambda: comm.all_gatherv(ones(4), ones(2), [2, 2]), "ncclGroupEnd"),
        "reduce_scatter": (lambda: comm.reduce_scatter(ones(2), ones(4)), "ncclReduceScatter"),
        "reduce_scatterv": (
            lambda: comm.reduce_scatterv(ones(2), ones(4), [2, 2]),
            "ncclGroupEnd",
        ),
        "reduce": (lambda: comm.reduce(ones(2), ones(2), 0), "ncclReduce"),
        "scatter": (lambda: comm.scatter(ones(2), ones(4), [2, 2]), "ncclSend"),
        "broadcast": (lambda: comm.broadcast(ones(2), 0), "ncclBroadcast"),
        "send": (lambda: comm.send(ones(2), 1), "ncclSend"),
        "recv": (lambda: comm.recv(ones(2), 1), "ncclRecv"),
        "suspend": (
            lambda: (setattr(comm, "_suspended", False), comm.suspend()),
            "ncclCommSuspend",
        ),
        "resume": (lambda: (setattr(comm, "_suspended", True), comm.resume()), "ncclCommResume"),
        "register_comm_window": (
            lambda: comm.register_comm_window(ones(2)),
            "ncclCommWindowRegister",
        ),
        "register_comm_window_raw": (
            lambda: comm.register_comm_window_raw(0, 8),
            "ncclCommWindowRegister",
        ),
        "batch_isend_irecv": (lambda: comm.batch_isend_irecv([message]), "ncclSend"),
        "new communicator": (make, "ncclCommInitRank"),
    }
    groups = {
        "group_start": (lambda: comm.group_start(), "ncclGroupStart"),
        "group_end": (lambda: comm.group_end(), "ncclGroupEnd"),
        "batch_isend_irecv": (lambda: comm.batch_isend_irecv([message]), "ncclSend"),
    }

    def break_tracer(name: str) -> Callable[[], None]:
        def apply() -> None:
            tracer = session.current()
            assert tracer is not None
            owner = tracer if hasattr(tracer, name) else tracer.ring
            setattr(owner, name, trouble)

        return apply

    def break_scope(name: str) -> Callable[[], None]:
        return lambda: setattr(scope, name, trouble)

    for name, (post, below) in posts.items():
        report(nccl, name, "no fault", lambda: None, post, below)
        report(nccl, name, "communicator", break_tracer("communicator"), post, below)
        if name != "new communicator":
            sending = name in ("send", "recv", "batch_isend_irecv")
            report(nccl, name, "template", break_tracer("template"), post, below)
            used = break_tracer("post_p2p" if sending else "post")
            report(nccl, name, "post", used, post, below)
    report(nccl, "scatter", "suppressed", break_scope("suppress"), *posts["scatter"])
    for name, (post, below) in groups.items():
        if native.core() is not None and name in ("group_start", "group_end"):
            continue  # C opens and ends them: see test_probe_groups.py
        fault = "leave_group" if name == "group_end" else "enter_group"
        report(nccl, name, fault, break_scope(fault), post, below)


def trouble(*_arguments: Any, **_named: Any) -> Any:
    raise ValueError("asked for by the test")


def report(
    nccl: Any,
    name: str,
    fault: str,
    break_it: Callable[[], None],
    post: Callable[[], Any],
    below: str,
) -> None:
    """Break something and post twice, then once more where NCCL fails; in a forked process."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        answer: dict[str, Any] = {"name": name, "fault": fault}
        os.dup2(1, 2)
        before = nccl.nccl_stand_in_calls(below.encode())
        break_it()
        answer["values"] = [type(post()).__name__, type(post()).__name__]
        answer["calls"] = nccl.nccl_stand_in_calls(below.encode()) - before
        nccl.nccl_stand_in_fail(below.encode())
        try:
            post()
        except RuntimeError as error:
            answer["error"] = f"{error}, after {error.__context__!r}"
        print(json.dumps(answer))
    except BaseException:
        traceback.print_exc(file=sys.stdout)
    finally:
        sys.stdout.flush()
        os._exit(0)


@pytest.fixture(scope="module")
def faults(
    tmp_path_factory: pytest.TempPathFactory, library: dict[str, str]
) -> list[tuple[Fields, int]]:
    """For each fault what came of it, and how many warnings there were."""
    environment = {
        "NCCLSCOPE_DIR": str(tmp_path_factory.mktemp("rings")),
        "NCCLSCOPE_RECORDS": "1024",
        **library,
    }
    process = start(__file__, "break_each_method", environment)
    output, _ = process.communicate(timeout=110)
    assert process.returncode == 0, output
    found, warnings = [], 0
    for line in output.splitlines():
        assert "Traceback" not in line, output
        warnings += "probe is off in this process" in line
        if line.startswith("{"):
            found.append((json.loads(line), warnings))
            warnings = 0
    return found


def test_every_call_is_made_once_whatever_breaks(faults: list[tuple[Fields, int]]) -> None:
    whole = {one["name"]: one for one, _ in faults if one["fault"] == "no fault"}
    assert len(whole) == 16
    for one, _ in faults:
        if one["name"] in whole:
            assert one["values"] == whole[one["name"]]["values"], one
        assert one["calls"] == 2, one
        assert one["error"] == "NCCL error: failure asked for by the test, after None", one


def test_every_fault_is_reported_once(faults: list[tuple[Fields, int]]) -> None:
    for one, warnings in faults:
        assert warnings == (one["fault"] != "no fault"), one


if __name__ == "__main__":
    main(globals())

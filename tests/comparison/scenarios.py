"""The scenarios: one of each kind, tricky ones, and healthy ones that look like hangs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.comparison.script import Script

__all__ = ["SCENARIOS", "Scenario", "Truth"]

Play = Callable[[Script], None]
EVERYBODY = (0, 1, 2, 3)
ROWS = ((1, 2, 0, 3), (0, 0, 4, 1), (2, 2, 2, 2), (0, 5, 0, 0))
"""What each rank of an uneven exchange sends to each."""


@dataclass(frozen=True)
class Truth:
    """What was planted.

    Attributes:
        kind: One of the kinds of a verdict.
        ranks: Who did it.
        seq: The first call concerned, on its communicator; 0 where it is about no call.
        candidates: Where nothing can single a rank out: the ranks among which it lies.
        latent: Whether nothing hangs, yet.
        also: Other calls that are concerned as well.
    """

    kind: str
    ranks: tuple[int, ...] = ()
    seq: int = 0
    candidates: tuple[int, ...] = ()
    latent: bool = False
    also: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scenario:
    """One scenario.

    Attributes:
        name: Short name.
        title: What happens, in a line.
        play: Posts the calls.
        truth: What is planted; None in a healthy one.
        in_dumps: Whether dumps record what it is about.
    """

    name: str
    title: str
    play: Play
    truth: Truth | None = None
    in_dumps: bool = True


def seventh(odd: Mapping[str, Any], majority: Mapping[str, Any] | None = None) -> Play:
    """Rank 3 posts something else than its peers as the seventh call of all ranks."""

    def play(script: Script) -> None:
        script.steps()
        common = {"op": "all_reduce", "shape": (256,), **(majority or {})}
        for ranks, call in (((0, 1, 2), common), ((3,), common | dict(odd))):
            rest = {key: value for key, value in call.items() if key not in ("op", "shape")}
            script.post(ranks, call["op"], *call["shape"], done=False, **rest)

    return play


def split(script: Script) -> None:
    script.steps()
    rows = (4, 4, 2, 6)
    for rank in EVERYBODY:
        sizes = (4, 4, 6, 2) if rank == 3 else rows
        shape = (rows[rank], 2)
        script.post((rank,), "all_gatherv", *shape, sizes=sizes, done=False)


def exchange(script: Script, *, fits: bool) -> None:
    script.steps()
    for turn in range(3):
        last = turn == 2
        for rank in EVERYBODY:
            expected = [ROWS[peer][rank] for peer in EVERYBODY]
            if last and not fits and rank != 2:
                expected[2] += 1
            splits = (list(ROWS[rank]), expected)
            shape = (sum(ROWS[rank]), 3)
            script.post((rank,), "all_to_all", *shape, splits=splits, done=fits or not last)
        if fits:
            script.post(EVERYBODY)


def uneven_gather(script: Script) -> None:
    script.steps()
    for turn in range(4):
        rows = tuple(1 + (rank + turn) % 3 for rank in EVERYBODY)
        for rank in EVERYBODY:
            script.post((rank,), "all_gatherv", rows[rank], 2, sizes=rows)
        script.post(EVERYBODY)


OPS = ("all_reduce", "all_gather", "broadcast")


def missing_call(script: Script) -> None:
    script.steps()
    for step in range(6):
        ranks = [rank for rank in EVERYBODY if (rank, step) != (2, 2)]
        op = OPS[step % 3]
        options: dict[str, Any] = {"root": 0} if op == "broadcast" else {}
        script.post(ranks, op, 10 + step, 2, done=step < 2, **options)


def extra_call(script: Script) -> None:
    script.steps()
    for step in range(6):
        if step == 2:
            script.post((1,), "all_gather", 3, 2, done=False)
        op = OPS[step % 3]
        options: dict[str, Any] = {"root": 0} if op == "broadcast" else {}
        script.post(EVERYBODY, op, 10 + step, 2, done=step < 2, **options)


def equal_calls(script: Script) -> None:
    """All calls are equal but for the lines that they come from."""
    for step in range(4):
        script.post(EVERYBODY, site="model.py:10 first")
        ranks = [rank for rank in EVERYBODY if (rank, step) != (2, 1)]
        script.post(ranks, site="model.py:20 second")
        script.post(EVERYBODY, site="model.py:30 third", done=step < 3)


def comm_swap(script: Script) -> None:
    for _ in range(4):
        script.post(EVERYBODY, "all_reduce", 4, label="world")
        script.post(EVERYBODY, "all_gather", 2, label="ep")
    for step in range(5):
        odd = step in (1, 2)
        script.post((0, 1, 2), "all_reduce", 4, done=step < 1)
        script.post((3,), "all_reduce", 4, label="ep" if odd else "world", done=step < 1)
        script.post(EVERYBODY, "all_gather", 2, label="ep", done=step < 1)


def order_cycle(script: Script) -> None:
    for _ in range(4):
        script.post(EVERYBODY, "all_reduce", 4)
        script.post(EVERYBODY, "all_gather", 2, label="ep")
    script.post((0, 1, 2), "all_reduce", 4, done=False)
    script.post(EVERYBODY, "all_gather", 2, label="ep", done=False)
    script.post((3,), "all_reduce", 4, done=False)


def not_joined(script: Script) -> None:
    script.steps()
    script.post((0, 2, 3), done=False)


def dead_rank(script: Script) -> None:
    script.steps()
    script.post((0, 1, 3), done=False)
    script.ended = (2,)


def absent_and_wrong(script: Script) -> None:
    script.steps()
    script.post((0, 2), "all_reduce", 4, done=False)
    script.post((3,), "broadcast", 4, root=0, done=False)


def waits_elsewhere(script: Script) -> None:
    """Ranks 0 and 1 wait in the world for a pair that is at odds."""
    script.steps()
    script.post((0, 1), label="tp:0")
    script.post((2,), label="tp:1", done=False)
    script.post((3,), "all_gather", label="tp:1", done=False)
    script.post((0, 1), "all_reduce", 6, done=False)


def transfers(script: Script, count: int) -> None:
    script.steps(1)
    for _ in range(count):
        script.post((0,), "send", 3, peer=1)
        script.post((1,), "recv", 3, peer=0)
        script.post(EVERYBODY)


def send_alone(script: Script) -> None:
    transfers(script, 3)
    script.post((0,), "send", 3, peer=1, done=False)
    script.post((1, 2, 3), done=False)


def captured_alone(script: Script) -> None:
    script.steps()
    script.post((0, 1, 2), done=False)
    script.post((3,), captured=True, done=False)
    script.post((0, 1, 2), "all_gather", done=False)
    script.post((3,), "all_gather", done=False)


def stalled(script: Script) -> None:
    script.steps()
    script.post(EVERYBODY, done=False)
    script.given_up = (1,)


def group_order(script: Script) -> None:
    script.steps()
    for rank in EVERYBODY:
        for rows in (3, 1, 2) if rank == 2 else (1, 2, 3):
            script.post((rank,), "all_gather", rows, 2, grouped=True)
    script.post(EVERYBODY)


def healthy(script: Script) -> None:
    script.steps()


def wrapped(script: Script) -> None:
    """Each ring of 32 entries holds another stretch, as groups differ in traffic."""
    for step in range(20):
        script.post(EVERYBODY, "all_reduce", 4 + step % 3)
        script.post((0, 1) * 3, label="tp:0")
        script.post((2, 3), label="tp:1")
    script.keep = 32


def snapshot(script: Script) -> None:
    script.steps()
    script.post(EVERYBODY)
    script.post((0, 2, 3), done=False)
    script.quiet = 0.1


def seen_late(script: Script) -> None:
    script.steps()
    script.post((0, 3), "all_reduce", 9)
    script.post((1, 2), "all_reduce", 9, late=True)


def _truth(kind: str, seq: int = 7, **options: tuple[int, ...]) -> Truth:
    return Truth(kind, options.get("ranks", (3,)), seq, options.get("candidates", ()))


SCENARIOS = (
    Scenario(
        "op_mismatch",
        "rank 3 posts another operation",
        seventh({"op": "broadcast", "root": 0}),
        _truth("op_mismatch"),
    ),
    Scenario(
        "size_mismatch",
        "rank 3 posts another size",
        seventh({"shape": (128,)}),
        _truth("size_mismatch"),
    ),
    Scenario(
        "dtype_mismatch",
        "rank 3 posts another element type",
        seventh({"dtype": "bfloat16"}),
        _truth("dtype_mismatch"),
    ),
    Scenario(
        "redop_mismatch",
        "rank 3 reduces by another operator",
        seventh({"redop": "max"}),
        _truth("redop_mismatch"),
        in_dumps=False,
    ),
    Scenario(
        "root_mismatch",
        "rank 3 broadcasts from another root",
        seventh({"root": 1}, {"op": "broadcast", "root": 0}),
        _truth("root_mismatch"),
        in_dumps=False,
    ),
    Scenario(
        "split_mismatch",
        "rank 3 gathers with other sizes per member",
        split,
        _truth("split_mismatch"),
    ),
    Scenario(
        "all_to_all_splits",
        "rank 2 sends other rows than its peers expect",
        lambda script: exchange(script, fits=False),
        Truth("split_mismatch", (2,), 9),
    ),
    Scenario(
        "missing_call",
        "rank 2 leaves one call out and goes on",
        missing_call,
        Truth("missing_call", (2,), 9),
    ),
    Scenario(
        "extra_call",
        "rank 1 puts one call in and goes on",
        extra_call,
        Truth("extra_call", (1,), 9),
    ),
    Scenario(
        "equal_calls",
        "rank 2 leaves out one of many equal calls; the lines differ",
        equal_calls,
        Truth("missing_call", (2,), 5),
    ),
    Scenario(
        "comm_swap",
        "rank 3 makes two calls on another communicator",
        comm_swap,
        Truth("comm_swap", (3,), 6),
    ),
    Scenario(
        "order_cycle",
        "rank 3 enters two communicators in the opposite order",
        order_cycle,
        Truth("order_cycle", (3,), 5),
    ),
    Scenario(
        "not_joined",
        "rank 1 never comes to a call",
        not_joined,
        Truth("not_joined", (1,), 7),
    ),
    Scenario(
        "dead_rank",
        "rank 2 is killed and leaves no dump",
        dead_rank,
        Truth("dead_rank", (2,), 7),
    ),
    Scenario(
        "absent_and_wrong",
        "rank 3 posts another operation while rank 1 is absent",
        absent_and_wrong,
        Truth("op_mismatch", (1, 3), 7),
    ),
    Scenario(
        "waits_elsewhere",
        "ranks 2 and 3 are at odds in their pair, 0 and 1 wait in the world",
        waits_elsewhere,
        Truth("op_mismatch", (3,), 4),
    ),
    Scenario(
        "p2p_mismatch",
        "rank 0 sends what rank 1 does not receive",
        send_alone,
        Truth("p2p_mismatch", (), 4, candidates=(0, 1)),
    ),
    Scenario(
        "capture_mismatch",
        "rank 3 captures a call into a graph that its peers carry out",
        captured_alone,
        _truth("capture_mismatch"),
        in_dumps=False,
    ),
    Scenario(
        "stalled",
        "all are in the same call, and it does not complete",
        stalled,
        Truth("stalled", (), 7, candidates=EVERYBODY),
    ),
    Scenario(
        "group_order",
        "rank 2 reorders the calls of one NCCL group: nothing hangs yet",
        group_order,
        Truth("group_order", (2,), 7, latent=True),
        in_dumps=False,
    ),
    Scenario("healthy", "healthy", healthy),
    Scenario("healthy_wrapped", "healthy: old calls overwritten, unequal traffic", wrapped),
    Scenario(
        "healthy_all_to_all",
        "healthy: uneven all_to_all",
        lambda script: exchange(script, fits=True),
    ),
    Scenario("healthy_gatherv", "healthy: uneven all_gather", uneven_gather),
    Scenario(
        "healthy_transfers",
        "healthy: sends and receives between two of four ranks",
        lambda script: transfers(script, 3),
    ),
    Scenario("healthy_snapshot", "healthy: one rank is a call behind at that moment", snapshot),
    Scenario("healthy_seen_late", "healthy: some ranks know later what completed", seen_late),
)

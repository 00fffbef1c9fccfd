"""Trace JSONL as the contract has it: read, written, and not trusted."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclscope import open_run
from ncclscope.errors import DamagedFileError
from ncclscope.model import Call, Communicator, Rank, State
from ncclscope.model.signature import P2P_OPS, VECTOR_OPS, extend, sign
from ncclscope.readers.jsonl import trace as jsonl
from ncclscope.readers.jsonl.trace import read_trace, write_trace
from tests.support.examples import examples
from tests.support.hostile import survive
from tests.support.rings import check_log, fill, read, tracer_in

HEADER = {"ncclscope_trace": 1, "rank": 2, "world_size": 4, "host": "node-15", "pid": 8802}

bounded = settings(
    max_examples=examples(120),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def trace(tmp_path: Path, *lines: Any, header: Any = HEADER, end: str = "\n") -> Path:
    """Write a trace; lines that are text are written as they are."""
    path = tmp_path / "trace.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in (header, *lines)]
    path.write_text("\n".join(texts) + end, encoding="utf-8", errors="surrogatepass")
    return path


def call(op: str = "all_reduce", comm: str = "k", **fields: Any) -> dict[str, Any]:
    return {"call": op, "comm": comm, **fields}


def calls_of(rank: Rank, key: str = "k") -> list[Call]:
    log = rank.logs[key]
    return list(log.span(log.first, log.calls + 1))


# --- what the contract says ----------------------------------------------------------------


def test_the_contracts_example(tmp_path: Path) -> None:
    path = trace(
        tmp_path,
        '{"comm": "KEY", "label": "tp:0", "ranks": [2, 3], "backend": "nccl"}',
        """{"call": "all_reduce", "comm": "KEY", "seq": 1, "t_ns": 1795165653367456915,
        "shape": [15, 2], "dtype": "float32", "redop": "sum", "root": null, "peer": null,
        "sizes": null, "out_shape": null, "state": "scheduled", "captured": false,
        "site": "fused_moe.py:120 prepare"}""".replace("\n", " "),
        '{"step": 812, "tokens": 16, "dummy": false}',
        header='{"ncclscope_trace": 1, "rank": 2, "world_size": 4, "host": "node-15", '
        '"pid": 8802, "gpu": 2}',
    )
    rank = read_trace(path)

    assert (rank.rank, rank.world_size, rank.host, rank.pid, rank.gpu) == (2, 4, "node-15", 8802, 2)
    log = rank.logs["KEY"]
    assert log.communicator == Communicator("KEY", "tp:0", (2, 3), "nccl")
    assert log.call(1) == Call(
        op="all_reduce",
        comm="KEY",
        seq=1,
        position=0,
        dtype="float32",
        redop="sum",
        numel=30,
        shape=(15, 2),
        site="fused_moe.py:120 prepare",
        time_ns=1795165653367456915,
        signature=sign("all_reduce", dtype="float32", redop="sum", shape=(15, 2)),
    )
    (step,) = rank.steps
    assert (step.number, step.tokens, step.dummy, step.position) == (812, 16, False, 1)
    assert not rank.window


def test_a_line_needs_no_more_than_call_and_comm(tmp_path: Path) -> None:
    rank = read_trace(trace(tmp_path, *[call() for _ in range(3)], header={"ncclscope_trace": 1}))

    assert (rank.rank, rank.world_size, rank.host, rank.pid, rank.gpu) == (-1, 0, "", 0, None)
    calls = calls_of(rank)
    assert [(each.seq, each.op, each.comm) for each in calls] == [
        (number, "all_reduce", "k") for number in (1, 2, 3)
    ]
    assert all(
        value is None
        for each in calls
        for value in (each.shape, each.dtype, each.redop, each.root, each.numel, each.site)
    )
    assert rank.logs["k"].communicator == Communicator("k")


def test_unknown_fields_and_lines_are_ignored(tmp_path: Path) -> None:
    plain = read_trace(trace(tmp_path, call(seq=1, shape=[2]), call(seq=2, shape=[3])))
    rich = read_trace(
        trace(
            tmp_path,
            {"comment": "what is this"},
            call(seq=1, shape=[2], colour="red", nested={"a": [1]}),
            [],
            5,
            "",
            "   ",
            None,
            call(seq=2, shape=[3]),
            {},
            header={**HEADER, "more": {"x": 1}},
        )
    )
    assert calls_of(rich) == calls_of(plain)


@pytest.mark.parametrize("torn", ['{"call": "all_red', "{", '"', '{"call": "x", "comm": "k"', "é"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_torn_last_line_is_ignored(tmp_path: Path, torn: str, packed: bool) -> None:
    path = trace(tmp_path, call(), call(), torn, end="")
    if packed:
        data = path.read_bytes()
        path = tmp_path / "trace.jsonl.gz"
        path.write_bytes(gzip.compress(data))

    assert len(calls_of(read_trace(path))) == 2


def test_a_last_line_that_is_whole_but_for_its_end_counts(tmp_path: Path) -> None:
    assert len(calls_of(read_trace(trace(tmp_path, call(), call(), end="")))) == 2


def test_a_broken_line_in_the_middle_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match=r"trace.jsonl:3 is not JSON"):
        read_trace(trace(tmp_path, call(), '{"call": ', call()))


@pytest.mark.parametrize("cut", [10, 200, -12, -8, -1])
def test_a_packed_trace_that_is_cut_short(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "trace.jsonl.gz"
    lines = "\n".join(json.dumps(line) for line in [HEADER, *(call(shape=[n]) for n in range(300))])
    data = gzip.compress(lines.encode())
    path.write_bytes(data[:cut])
    if cut == 10:
        with pytest.raises(DamagedFileError):
            read_trace(path)
        return
    rank = read_trace(path)
    calls = calls_of(rank) if rank.logs else []
    assert [each.shape for each in calls] == [(n,) for n in range(len(calls))]
    assert len(calls) >= (5 if cut == 200 else 299)


def test_a_packed_trace_in_several_members(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    lines = [HEADER, *(call(shape=[n]) for n in range(3000))]
    text = "\n".join(json.dumps(line) for line in lines).encode()
    pieces = [text[start : start + 5000] for start in range(0, len(text), 5000)]
    path.write_bytes(b"".join(gzip.compress(piece) for piece in pieces))
    assert [each.shape for each in calls_of(open_run(tmp_path).ranks[0])] == [
        (n,) for n in range(3000)
    ]


@pytest.mark.parametrize(
    "header", [{}, {"rank": 1}, call(), [], 1, "", "{", None, {"ncclscope_trace": None}]
)
def test_without_its_header_a_file_is_no_trace(tmp_path: Path, header: Any) -> None:
    with pytest.raises(DamagedFileError):
        read_trace(trace(tmp_path, call(), header=header))


@pytest.mark.parametrize("version", [2, 0, "1", 1.5, [1], "x" * 100_000, "\ud800", [[[]]]])
def test_another_version_is_refused(tmp_path: Path, version: Any) -> None:
    with pytest.raises(DamagedFileError, match="trace of version") as caught:
        read_trace(trace(tmp_path, header={"ncclscope_trace": version}))
    assert len(str(caught.value)) < 500
    str(caught.value).encode()


# --- numbers -------------------------------------------------------------------------------


def test_numbers_that_are_given_are_kept(tmp_path: Path) -> None:
    rank = read_trace(trace(tmp_path, *[call(seq=number, shape=[number]) for number in (7, 8, 9)]))

    log = rank.logs["k"]
    assert (log.first, log.calls, rank.lost) == (7, 9, 6)
    assert log.call(8).shape == (8,)
    assert not log.rooted
    assert log.anchored


def test_where_no_number_is_given_the_order_counts(tmp_path: Path) -> None:
    rank = read_trace(
        trace(tmp_path, call(shape=[1]), call(comm="other"), call(shape=[2]), call(seq=None))
    )
    assert [each.seq for each in calls_of(rank)] == [1, 2, 3]
    assert [each.position for each in calls_of(rank)] == [0, 2, 3]


def test_numbers_may_begin_in_the_middle(tmp_path: Path) -> None:
    rank = read_trace(trace(tmp_path, call(seq=5), call(), call(), call(seq=8)))
    assert [each.seq for each in calls_of(rank)] == [5, 6, 7, 8]


def test_after_missing_lines_what_follows_the_last_gap_is_kept(tmp_path: Path) -> None:
    rank = read_trace(trace(tmp_path, *[call(seq=number) for number in (1, 2, 3, 7, 8)]))
    assert [each.seq for each in calls_of(rank)] == [7, 8]
    assert rank.lost == 6


@pytest.mark.parametrize("seq", [0, -1, -(10**30), 10**30, 1 << 63, 1.5, "3", [], True])
def test_numbers_that_are_none_count_as_absent(tmp_path: Path, seq: Any) -> None:
    rank = read_trace(trace(tmp_path, call(seq=seq), call(seq=seq)))
    assert [each.seq for each in calls_of(rank)] == [1, 2]


def test_sends_that_share_the_numbers_are_counted_out(tmp_path: Path) -> None:
    rank = read_trace(
        trace(
            tmp_path,
            call(seq=1),
            call("send", seq=2, peer=1),
            call(seq=3),
            call("recv", seq=4, peer=1),
            call("send", seq=5, peer=1),
            call(seq=6),
        )
    )
    assert [each.seq for each in calls_of(rank)] == [1, 2, 3]
    assert [each.op for each in rank.p2p["k"]] == ["send", "recv", "send"]
    assert rank.lost == 0


@pytest.mark.parametrize("first", [1, 1000])
def test_sends_with_numbers_of_their_own_are_left_alone(tmp_path: Path, first: int) -> None:
    rank = read_trace(
        trace(
            tmp_path,
            call("send", seq=3, peer=1),
            call("send", seq=4, peer=1),
            call(seq=first),
            call(seq=first + 1),
            call("recv", seq=5, peer=1),
            call(seq=first + 2),
        )
    )
    assert [each.seq for each in calls_of(rank)] == [first, first + 1, first + 2]
    assert [each.seq for each in rank.p2p["k"]] == [3, 4, 5]


def test_a_send_on_a_communicator_that_no_line_describes_has_one(tmp_path: Path) -> None:
    rank = read_trace(trace(tmp_path, call("send", peer=1)))

    assert [*rank.p2p] == [*rank.logs] == ["k"]


@pytest.mark.timeout(20)
def test_many_sends_among_many_calls_take_no_longer_than_reading_them(tmp_path: Path) -> None:
    lines = [call("send" if n % 2 else "all_reduce", seq=n + 1) for n in range(60_000)]
    rank = read_trace(trace(tmp_path, *lines))
    assert rank.logs["k"].calls == 30_000


def test_a_window_says_so(tmp_path: Path) -> None:
    rank = read_trace(trace(tmp_path, call(), call(), header={**HEADER, "window": True}))
    assert rank.window
    assert not rank.logs["k"].anchored
    assert open_run(tmp_path).window


@pytest.mark.parametrize("step", [-1, 1 << 63, (1 << 64) - 1])
def test_a_step_that_no_engine_counts_is_left_out(tmp_path: Path, step: int) -> None:
    lines = [{"step": 1}, call(), {"step": step}, call()]
    (rank,) = open_run(trace(tmp_path, *lines)).ranks

    assert [one.number for one in rank.steps] == [1]


def test_steps_come_before_the_calls_that_belong_to_them(tmp_path: Path) -> None:
    rank = read_trace(
        trace(
            tmp_path,
            {"step": 1, "tokens": 5},
            call(),
            call(),
            {"step": 2, "dummy": True},
            call(),
            {"step": 3, "tokens": None, "dummy": None},
            {"step": "x"},
            {"step": None},
        )
    )
    assert [(step.number, step.position, step.tokens, step.dummy) for step in rank.steps] == [
        (1, 0, 5, False),
        (2, 2, None, True),
        (3, 3, None, False),
    ]


@pytest.mark.parametrize(
    ("spelled", "canonical"),
    [
        ({"dtype": "torch.float32"}, {"dtype": "float32"}),
        ({"dtype": "BFloat16"}, {"dtype": "bfloat16"}),
        ({"redop": "ReduceOp.SUM"}, {"redop": "sum"}),
        ({"redop": "RedOpType.AVG"}, {"redop": "avg"}),
        ({"call": "AllReduce"}, {"call": "all_reduce"}),
        ({"call": "_allgather_base"}, {"call": "all_gather"}),
    ],
)
def test_spellings(tmp_path: Path, spelled: dict[str, str], canonical: dict[str, str]) -> None:
    (one,) = calls_of(read_trace(trace(tmp_path, {**call(shape=[4]), **spelled})))
    (other,) = calls_of(read_trace(trace(tmp_path, {**call(shape=[4]), **canonical})))
    assert one == other


@pytest.mark.parametrize(
    ("word", "state"), [("started", 1), ("completed", 2), ("scheduled", 0), ("?", 0), (5, 0)]
)
def test_states(tmp_path: Path, word: Any, state: int) -> None:
    (read,) = calls_of(read_trace(trace(tmp_path, call(state=word))))
    assert read.state == State(state)


# --- written and read again ----------------------------------------------------------------

names = st.text("abcxyz_0", min_size=1, max_size=6)
small = st.integers(0, 2000)
posted = st.fixed_dictionaries(
    {
        "comm": st.sampled_from(["a", "b"]),
        "op": st.sampled_from([*sorted(VECTOR_OPS), *sorted(P2P_OPS), "all_reduce", "all_to_all",
                               "broadcast", "barrier", "scatter", "AllGather"]),
    },
    optional={
        "shape": st.lists(st.integers(0, 1 << 33), max_size=6),
        "dtype": st.sampled_from(["float32", "torch.bfloat16", "INT8"]),
        "redop": st.sampled_from(["sum", "ReduceOp.MAX"]),
        "root": st.integers(0, 7),
        "peer": st.integers(0, 7),
        "numel": small,
        "sizes": st.lists(st.integers(-(1 << 40), 1 << 40), max_size=5),
        "out_sizes": st.lists(small, max_size=5),
        "out_shape": st.lists(small, max_size=3),
        "site": st.one_of(names, st.just("ünï.py:3 ƒ\x1b[31m")),
        "state": st.integers(0, 2),
        "captured": st.booleans(),
        "graph": st.integers(0, 9),
    },
)  # fmt: skip


@bounded
@given(program=st.lists(st.one_of(posted, st.integers(0, 99)), max_size=40), packed=st.booleans())
def test_what_a_ring_holds_survives_a_trace(
    tmp_path: Path, program: list[Any], packed: bool
) -> None:
    tracer = tracer_in(tmp_path / "rings", rank=1, world_size=2, labels={"tp": "1"})
    comms = {key: tracer.communicator(key, f"{key}:0", [1, 0], "nccl") for key in "ab"}
    for line in program:
        if isinstance(line, int):
            slot = tracer.activity(f"activity {line % 4}")
            begun = slot.begin("some method" if line % 3 else None, line)
            if line % 2:
                slot.end(begun)
            tracer.step(line, tokens=line or None, dummy=line % 2 == 0)
        else:
            fields = dict(line)
            if fields["op"] not in VECTOR_OPS and "shape" in fields:
                fields["shape"] = [min(size, 1 << 31) for size in fields["shape"][:4]]
                fields.pop("numel", None)
            tracer.record(comms[fields.pop("comm")], fields.pop("op"), **fields)
    before = read(tracer.path)
    path = tmp_path / ("copy.jsonl.gz" if packed else "copy.jsonl")
    write_trace(before, path)
    after = read_trace(path)
    tracer.ring.path.unlink()

    assert after.activities == before.activities
    for name in ("rank", "world_size", "host", "pid", "gpu", "labels", "started_ns", "exited"):
        assert getattr(after, name) == getattr(before, name)
    assert set(after.logs) == set(before.logs)
    order_before, order_after = [], []
    for key in before.logs:
        one, other = before.logs[key], after.logs[key]
        assert one.communicator == other.communicator
        assert (one.first, one.calls) == (other.first, other.calls)
        for seq in range(one.first - 1, one.calls + 1):
            assert one.fingerprint(seq) == other.fingerprint(seq)
        pairs = [*zip(calls_of(before, key), calls_of(after, key), strict=True)]
        sent = zip(before.p2p.get(key, ()), after.p2p.get(key, ()), strict=True)
        for mine, theirs in [*pairs, *sent]:
            order_before.append(mine.position)
            order_after.append(theirs.position)
            for name in Call.__dataclass_fields__:
                if name not in ("position", "root_rank"):  # of the whole run
                    assert getattr(mine, name) == getattr(theirs, name), name
    rank_of = {position: place for place, position in enumerate(sorted(order_before))}
    assert [rank_of[position] for position in order_before] == order_after
    steps = [(step.number, step.tokens, step.dummy) for step in before.steps]
    assert [(step.number, step.tokens, step.dummy) for step in after.steps] == steps


def test_a_ring_that_has_gone_round_survives_a_trace(tmp_path: Path) -> None:
    tracer = tracer_in(tmp_path / "rings")
    comm = tracer.communicator("k", "tp:0", [0])
    fill(tracer, comm, 1, 2000)
    for number in range(5):
        tracer.record(comm, "send", shape=(number,), peer=0)
    fill(tracer, comm, 2000, 2300)
    for number in range(40):
        tracer.record(comm, "all_gatherv", shape=(1,), sizes=[number] * 200)
    before = read(tracer.path)
    write_trace(before, tmp_path / "copy.jsonl")

    after = read_trace(tmp_path / "copy.jsonl")

    one, other = before.logs["k"], after.logs["k"]
    assert (one.first, one.calls) == (other.first, other.calls)
    assert one.first > 1000
    signatures = [list(log.signatures(log.first, log.calls + 1)) for log in (one, other)]
    assert signatures[0] == signatures[1]
    assert {each.sizes is None for each in calls_of(before)[-40:]} == {True, False}
    assert [each.sizes for each in calls_of(after)] == [each.sizes for each in calls_of(before)]
    assert [each.seq for each in after.p2p["k"]] == [1, 2, 3, 4, 5]


def test_the_last_calls_alone(tmp_path: Path) -> None:
    tracer = tracer_in(tmp_path / "rings")
    comm, other = tracer.communicator("k", "tp:0", [0]), tracer.communicator("o", "dp:0", [0])
    for number in range(1, 50):
        tracer.step(number)
        fill(tracer, comm, number, number + 1)
    fill(tracer, other, 1, 4)
    write_trace(read(tracer.path), tmp_path / "x.jsonl", last=10)
    write_trace(read(tracer.path), tmp_path / "none.jsonl", last=0)

    rank = read_trace(tmp_path / "x.jsonl")

    assert rank.window
    assert rank.records == 10
    assert [each.shape for each in calls_of(rank)] == [(n, 1 + n % 3) for n in range(43, 50)]
    assert [each.seq for each in calls_of(rank)] == list(range(1, 8))
    assert min(step.number for step in rank.steps) >= 43
    assert read_trace(tmp_path / "none.jsonl").records == 0


def test_a_ring_beside_its_own_trace_is_one_process(tmp_path: Path) -> None:
    tracer = tracer_in(tmp_path)
    fill(tracer, tracer.communicator("k"), 1, 6)
    write_trace(read(tracer.path), tmp_path / "copy.jsonl")

    run = open_run(tmp_path)

    (rank,) = run.ranks
    assert rank.source == tracer.path
    check_log(rank.logs["k"], 1, 5)


# --- what comes from elsewhere --------------------------------------------------------------

rubbish = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**40), 10**40),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from(["\ud800", "all_reduce", "send", "all_gatherv", "k", "tp:0", "sum"]),
        st.just(1 << 63),
        st.just(1 << 31),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = ["call", "comm", "seq", "t_ns", "shape", "dtype", "redop", "root", "peer", "sizes",
          "out_shape", "state", "captured", "site", "numel", "group", "graph", "signature", "step",
          "tokens", "dummy", "label", "ranks", "backend"]  # fmt: skip
HEADERS = ["rank", "world_size", "host", "pid", "gpu", "labels", "window", "started_ns",
           "last_seen_ns", "exited", "run"]  # fmt: skip


@bounded
@given(
    header=st.dictionaries(st.sampled_from(HEADERS), rubbish, max_size=6),
    lines=st.lists(
        st.one_of(
            rubbish,
            st.dictionaries(st.sampled_from(FIELDS), rubbish, max_size=8),
            st.builds(
                lambda fields: {"call": "all_reduce", "comm": "k", **fields},
                st.dictionaries(st.sampled_from(FIELDS), rubbish, max_size=6),
            ),
        ),
        max_size=8,
    ),
    other=st.booleans(),
)
def test_fields_of_any_type(
    tmp_path: Path, header: dict[str, Any], lines: list[Any], other: bool
) -> None:
    path = trace(tmp_path, *lines, header={"ncclscope_trace": 1, **header})
    if other:  # a second process, so that they are compared and distinguished
        (tmp_path / "other.jsonl").write_bytes(path.read_bytes())
    else:
        (tmp_path / "other.jsonl").unlink(missing_ok=True)
    survive(tmp_path)


@bounded
@given(data=st.binary(max_size=300), header=st.booleans(), packed=st.booleans())
def test_bytes_of_any_kind(tmp_path: Path, data: bytes, header: bool, packed: bool) -> None:
    for path in tmp_path.iterdir():
        path.unlink()
    data = (json.dumps(HEADER).encode() + b"\n" if header else b"") + data
    path = tmp_path / ("x.jsonl.gz" if packed else "x.jsonl")
    path.write_bytes(gzip.compress(data) if packed else data)
    survive(tmp_path)


@bounded
@given(
    changes=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=4)
)
def test_packed_bytes_that_have_changed(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    lines = "\n".join(json.dumps(line) for line in [HEADER, *(call(shape=[n]) for n in range(200))])
    data = bytearray(gzip.compress(lines.encode()))
    for place, value in changes:
        data[place % len(data)] = value
    (tmp_path / "x.jsonl.gz").write_bytes(data)
    survive(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        '{"call": "x", "comm": "k", "a": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"a": ' * 50_000,
        '{"call": "all_reduce", "comm": "k", "shape": [' + "9" * 4000 + "]}",
        '{"call": "all_reduce", "comm": "k", "shape": [' + "9" * 5000 + "]}",
        '{"call": "all_reduce", "comm": "k", "shape": [' + ",".join(["7" * 19] * 20_000) + "]}",
        '{"call": "all_gatherv", "comm": "k", "sizes": [' + ",".join(["7" * 19] * 50_000) + "]}",
        '{"call": "all_reduce", "comm": "k", "signature": 99999999999999999999999}',
        '{"call": "all_reduce", "comm": "k", "signature": -1}',
        '{"call": "all_reduce", "comm": {"k": 1}}',
        '{"call": ["all_reduce"], "comm": "k"}',
        '{"call": "all_reduce", "comm": "\\ud800", "dtype": "\\udfff", "site": "\\ud800"}',
        '{"call": "all_reduce", "comm": "k", "shape": [NaN, Infinity], "t_ns": -Infinity}',
        '{"call": "all_reduce", "comm": "k", "shape": [1, "2", null]}',
        '{"comm": "k", "ranks": [0, 1000000000000]}',
        '{"comm": "k", "ranks": "0123", "label": ["tp"], "backend": 5}',
        '{"call": "all_reduce", "comm": "k", "seq": 4611686018427387903}',
        '{"step": 18446744073709551615, "tokens": -5}',
        "\x00" * 50,
    ],
    ids=range(18),
)
@pytest.mark.timeout(20)
def test_lines_that_somebody_thought_up(tmp_path: Path, line: str) -> None:
    survive(trace(tmp_path, call(), line))
    survive(trace(tmp_path, call(), line, call()))


def test_a_rank_that_no_job_has(tmp_path: Path) -> None:
    trace(tmp_path, call(), header={**HEADER, "rank": 10**12, "world_size": 10**12})
    run = open_run(tmp_path)
    assert (len(run.ranks), len(run.others), run.expected) == (0, 1, 0)


def test_a_line_that_does_not_end(tmp_path: Path) -> None:
    path = trace(tmp_path, call(), "x" * (jsonl.MAX_LINE + 10))
    with pytest.raises(DamagedFileError, match="longer than"):
        read_trace(path)


def test_a_packed_file_that_unpacks_to_more_than_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "MAX_UNPACKED", 32 << 20)  # or it would take a while
    path = tmp_path / "x.jsonl.gz"
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    line = b"{" + b" " * (jsonl.MAX_LINE // 2) + b"}\n"
    with path.open("wb") as file:
        file.write(packer.compress(json.dumps(HEADER).encode() + b"\n"))
        for _ in range(jsonl.MAX_UNPACKED // len(line) + 2):
            file.write(packer.compress(line))
        file.write(packer.flush())
    assert os.path.getsize(path) < 100_000
    with pytest.raises(DamagedFileError, match="decompress it first"):
        read_trace(path)


def test_a_running_hash_is_that_of_the_signatures(tmp_path: Path) -> None:
    log = read_trace(trace(tmp_path, *[call(shape=[n]) for n in range(50)])).logs["k"]
    value = 0
    for number in range(50):
        assert log.fingerprint(number) == value
        value = extend(value, sign("all_reduce", shape=(number,)))
    assert log.fingerprint(50) == value


@pytest.mark.parametrize(("state", "unseen"), [("waiting", 1), ("done", 0)])
def test_a_transfer_that_is_awaited_is_not_covered_by_calls(
    tmp_path: Path, state: str, unseen: int
) -> None:
    common = {"transfer": "kv", "id": "cmpl-7", "peer": "prefill-0", "direction": "recv"}
    lines = [
        {"ncclscope_trace": 1, "rank": 0},
        {**common, "state": "waiting"},
        {**common, "state": state},
    ]
    path = tmp_path / "rank-0.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (rank,) = open_run(path).ranks
    found = rank.details.get("unseen", [])
    assert len(found) == unseen
    assert all("transfer cmpl-7 from prefill-0" in entry["text"] for entry in found)

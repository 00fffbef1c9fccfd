"""Ten jobs whose rings are damaged, each with the truth, which was written first."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ncclscope.model import Transfer
from ncclscope.procfs import boot_id
from ncclscope.ring.transfers import TransferTable
from ncclscope.tracing.graphs import TracedGraph
from ncclscope.tracing.tracer import Comm, Tracer
from tests.corpus.cases import sequences, transfers
from tests.corpus.workload import BEGAN_NS, STEP_NS, Posted, Workload
from tests.damage.recording import Process, Script, SetBack

__all__ = ["HOUR_NS", "JOBS", "Job", "Truth"]

HOUR_NS = 3600 * 10**9
_SECOND_NS = 10**9
_QUIET_NS = 600 * _SECOND_NS
_RECORDED = ("redop", "root", "peer", "sizes", "out_sizes", "out_shape", "site")
_DATA = Path(__file__).parent.parent / "data" / "damage"
RING_CAPACITY = 1024


@dataclass(frozen=True)
class Truth:
    """What happened in a job, as far as its records can show it.

    Attributes:
        status: Every status that is right.
        guilty: Ranks that have diverged, or the pids of processes, as ``pid 2000``.
        candidates: Where the records single out none: those among which they are.
        kinds: Kinds that do not contradict what happened.
        places: Places in the script of these processes.
    """

    status: tuple[str, ...]
    guilty: frozenset[str] = frozenset()
    candidates: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    places: frozenset[int] = frozenset()

    @property
    def is_healthy(self) -> bool:
        """Whether nothing went wrong."""
        return not self.kinds

    @property
    def allowed(self) -> frozenset[str]:
        """All that may be named."""
        return self.guilty | self.candidates


@dataclass(frozen=True)
class Job:
    """One job.

    Attributes:
        name: A word.
        truth: What happened in it.
        write: Returns what its processes do.
    """

    name: str
    truth: Truth
    write: Callable[[], Script]

    def elsewhere(self) -> Iterator[tuple[str, Script]]:
        """Yield scripts of the same job on other hosts, after other boots."""
        here = {"host": socket.gethostname()}
        for name, details in (
            ("other-boot-id", {"boot_id": "other-boot"}),
            ("other-host", {"host": "node-7", "boot_id": "other-boot"}),
            ("rebooted", {**here, "boot_id": "boot-before"}),
            ("pids-gone", {**here, "boot_id": boot_id(), "pid_namespace": None, "start_ticks": 1}),
        ):
            yield name, self.write().elsewhere(**details)

    def set_back(self) -> Iterator[tuple[str, Script]]:
        """Yield scripts in which host clocks are set back by an hour while the job runs."""
        script = self.write()
        times = sorted(event[0] for event in script.events)
        everybody = tuple(range(len(script.processes)))
        hosts = {"all": everybody, **{str(place): (place,) for place in everybody}}
        moments = {"middle": times[len(times) // 2], "waiting": times[-1] + _SECOND_NS}
        for host, places in hosts.items():
            for moment, at in moments.items():
                change = SetBack(at, HOUR_NS, places)
                yield f"{host}-{moment}", replace(self.write(), set_back=change)


def _diverged(*ranks: int, kinds: str, status: str = "diverged") -> Truth:
    named = frozenset(map(str, ranks))
    return Truth(
        tuple(status.split()), named, kinds=frozenset(kinds.split()), places=frozenset(ranks)
    )


# --- from programs of ranks -----------------------------------------------------------------------


def _play(workload: Workload) -> Script:
    """Return the script of a workload."""
    history = workload.play()
    script = Script()
    for rank in workload.everybody:
        exits = history.ended.get(rank) == "exit"
        script.processes.append(Process(rank, workload.size, {}, history.last_seen_ns[rank], exits))
        comms: dict[str, Comm] = {}
        posted = [each for each in history.posted[rank] if not each.post.silent]
        nexts = [each.time_ns for each in posted[1:]] + [history.last_seen_ns[rank] - STEP_NS]
        for each, following in zip(posted, nexts, strict=True):
            position: list[int] = []
            post = partial(_post, workload, rank, comms, each, position)
            script.at(each.time_ns, rank, post)
            if each.done and (workload.backend == "gloo" or each.post.waits):
                done = min(each.time_ns + STEP_NS // 2, following - 1)
                script.at(done, rank, partial(_complete, position))
    return script


def _post(
    workload: Workload,
    rank: int,
    comms: dict[str, Comm],
    posted: Posted,
    position: list[int],
    tracer: Tracer,
) -> None:
    call = posted.post
    if not comms:
        for label, members in workload.groups.items():
            if rank in members:
                key = label + "/" + ",".join(map(str, members))
                comms[label] = tracer.communicator(key, label, members, workload.backend)
    more = {key: call.more[key] for key in _RECORDED if key in call.more}
    if call.op in ("all_reduce", "reduce_scatter"):
        more.setdefault("redop", "sum")
    more.setdefault("site", f"train.py:10 {call.op}")
    made = tracer.record(comms[call.group], call.op, shape=call.shape, dtype=call.dtype, **more)
    position.append(made)


def _complete(position: list[int], tracer: Tracer) -> None:
    tracer.complete(position[0])


def _turns(job: Workload, count: int) -> None:
    for number in range(count):
        sequences.turn(job, job.everybody, number)


def _healthy() -> Script:
    """All ranks do the same to the end: steps, sizes lists, two communicators, an activity."""
    pairs: dict[str, tuple[int, ...]] = {"tp:0": (0, 1), "tp:1": (2, 3)}
    job = Workload(groups=pairs, seed="healthy")
    job.steps(4)
    for number in range(3):
        sizes = tuple(1 + (number + member) % 4 for member in range(4))
        for rank in job.everybody:
            shape = (sizes[rank], 8)
            job.post((rank,), "all_gatherv", *shape, sizes=sizes, site="moe.py:40 gather")
    job.steps(1)
    script = _play(job)
    for rank in job.everybody:
        own = sorted(when for when, place, _ in script.events if place == rank)
        for number, when in enumerate(own[::4]):
            script.at(when - 1000, rank, partial(_step, number))
    return script


def _step(number: int, tracer: Tracer) -> None:
    tracer.step(number, tokens=8 + number)
    tracer.activity("dequeue").end(tracer.activity("dequeue").begin("execute_model", number))


def _skipped() -> Script:
    """Rank 3 leaves one call out and goes on; its program then waits with the others."""
    job = Workload(seed="skipped")
    sequences.left_out(job)
    return _play(job)


def _not_joined() -> Script:
    """Rank 1 never comes to the last call, after 300 calls."""
    job = Workload(seed="not_joined", backend="gloo")
    for number in range(300):
        job.post(job.everybody, "all_reduce", 4 + number % 5)
    _turns(job, 6)
    job.post(job.but(1), "all_reduce", 64, site="train.py:77 last")
    return _play(job)


def _swapped() -> Script:
    """Rank 3 takes its two communicators for each other once."""
    job = Workload(groups=dict(sequences.GRID), seed="swapped")
    sequences.communicators_swapped_in_grid(job)
    return _play(job)


def _other_op() -> Script:
    """Rank 2 posts another operation, after its ring has wrapped."""
    job = Workload(seed="other_op")
    for number in range(RING_CAPACITY + 40):
        job.post(job.everybody, "all_reduce", 4 + number % 5, waits=number % 50 == 49)
    _turns(job, 4)
    job.post(job.but(2), "all_reduce", 64)
    job.post((2,), "all_gather", 64)
    return _play(job)


def _pipeline() -> Script:
    """Stage 2 of four runs one microbatch less than its neighbours."""
    job = Workload(seed="pipeline")
    transfers.short_middle_stage(job)
    return _play(job)


def _two_causes() -> Script:
    """Rank 3 posts another operation in a call that rank 1 never comes to."""
    job = Workload(seed="two_causes")
    job.steps()
    job.post((0, 2), "all_reduce", 4)
    job.post((3,), "broadcast", 4, root=0)
    return _play(job)


# --- from a recording -----------------------------------------------------------------------------


def _ddp() -> Script:
    """Posts of torch's DDP on gloo: rank 3 has one batch fewer and is in the last barrier."""
    script = Script()
    paths = sorted(_DATA.glob("ddp-rank-*.jsonl.gz"))
    traces = [
        list(map(json.loads, gzip.decompress(path.read_bytes()).splitlines())) for path in paths
    ]
    shift = BEGAN_NS + _SECOND_NS - traces[0][0]["started_ns"]
    for place, (header, comm, *calls) in enumerate(traces):
        details = {**header["told"], "run": header["run"]}
        process = Process(place, header["world_size"], details, header["last_seen_ns"] + shift)
        script.processes.append(replace(process, last_seen_ns=process.last_seen_ns + _QUIET_NS))
        for each in calls:
            script.at(each["t_ns"] + shift, place, partial(_post_line, comm, each))
        for activity in header["activities"]:
            note = partial(_note, activity, shift)
            script.at((activity["until_ns"] or activity["since_ns"]) + shift, place, note)
    return script


def _post_line(comm: Mapping[str, Any], line: Mapping[str, Any], tracer: Tracer) -> None:
    known = tracer.communicator(
        comm["comm"], comm["label"], comm["ranks"], comm["backend"], comm["created_at"]
    )
    parameters = {name: line[name] for name in ("shape", "dtype", *_RECORDED) if line.get(name)}
    if line["root"] is not None:
        parameters["root"] = line["root"]
    position = tracer.record(known, line["call"], **parameters)
    if line["state"] == "completed":
        tracer.complete(position)


def _note(activity: Mapping[str, Any], shift: int, tracer: Tracer) -> None:
    slot = tracer.activity(activity["name"])
    begun = slot.begin(activity["detail"], activity["number"], activity["since_ns"] + shift)
    if activity["until_ns"] is not None:
        slot.end(begun)


# --- from scripts of their own --------------------------------------------------------------------


def _graph() -> Script:
    """All replay a captured graph; in the last step rank 3 replays another one."""
    script = Script()
    end = BEGAN_NS + 40 * STEP_NS
    for rank in range(4):
        script.processes.append(Process(rank, 4, {}, end + _QUIET_NS))
        graphs: dict[int, TracedGraph] = {}
        for number, size in enumerate((8, 16)):
            when = BEGAN_NS + (1 + number) * STEP_NS + rank
            script.at(when, rank, partial(_capture, graphs, size))
        for number in range(24):
            when = BEGAN_NS + (4 + number) * STEP_NS + rank
            if number % 4 == 3:
                script.at(when, rank, partial(_post_eager, number))
            size = 16 if rank == 3 and number == 22 else 8
            script.at(when + 10, rank, partial(_replay, graphs, size))
    return script


def _capture(graphs: dict[int, TracedGraph], size: int, tracer: Tracer) -> None:
    begun = tracer.graphs.begin()
    comm = _world(tracer)
    for layer in range(3):
        site = f"layers.py:{30 + layer} forward"
        options: dict[str, Any] = {"dtype": "bfloat16", "captured": True, "site": site}
        tracer.record(comm, "all_reduce", shape=(size, 32), redop="sum", **options)
        tracer.record(comm, "all_gather", shape=(size, 4 + layer), **options)
    graphs[size] = tracer.graphs.end(begun)


def _post_eager(number: int, tracer: Tracer) -> None:
    site = "runner.py:90 sample"
    tracer.record(_world(tracer), "all_gather", shape=(3 + number, 2), dtype="float32", site=site)


def _replay(graphs: dict[int, TracedGraph], size: int, tracer: Tracer) -> None:
    graphs[size].replay()


def _world(tracer: Tracer) -> Comm:
    members = tuple(range(tracer.world_size))
    return tracer.communicator("world", "world", members, "nccl")


def _transfers() -> Script:
    """A prefill engine is killed while a decode engine waits for its KV blocks."""
    script = Script()
    killed = BEGAN_NS + 30 * STEP_NS
    for place in range(4):
        engine = "prefill" if place < 2 else "decode"
        details = {"run": engine, "host": f"{engine}-host", "pid": 2000 + place}
        last = killed + 9 * STEP_NS if engine == "prefill" else killed + _QUIET_NS
        script.processes.append(Process(place % 2, 2, details, last))
        tables: list[TransferTable] = []
        for number in range(12):
            when = BEGAN_NS + (1 + 2 * number) * STEP_NS + place
            script.at(when, place, partial(_step_of, engine, number))
            if number % 3 == 2:
                move = partial(_move, tables, engine, place % 2, number, done=number < 11)
                script.at(when + 10, place, move)
    return script


def _step_of(engine: str, number: int, tracer: Tracer) -> None:
    comm = tracer.communicator(f"tp/{engine}", "tp:0", (0, 1), "nccl")
    site = "layers.py:30 forward"
    shape = (4 + number % 3, 8)
    tracer.record(comm, "all_reduce", shape=shape, dtype="bfloat16", redop="sum", site=site)


def _move(
    tables: list[TransferTable], engine: str, rank: int, number: int, tracer: Tracer, *, done: bool
) -> None:
    """Record an end of a transfer, which is completed at once unless it is the last one."""
    if not tables:
        tables.append(TransferTable(Path(tracer.path), tracer.ring.geometry))
    receives = engine == "decode"
    request = f"{'d' if receives else 'p'}{number}"
    made = Transfer(
        id=f"p{number}",
        engine=engine,
        direction="recv" if receives else "send",
        state="started" if receives else "waiting",
        request=request,
        peer="prefill" if receives else "",
        host="prefill-host",
        port=5600 + rank,
        phase="read" if receives else "held",
        blocks=4,
    )
    tables[0].put(made)
    if done:
        tables[0].change(made.direction, request, state="completed")


_ABSENT = "not_joined missing_call"
JOBS: Mapping[str, Job] = {
    job.name: job
    for job in (
        Job("healthy", Truth(("ok",)), _healthy),
        Job("skipped", _diverged(3, kinds="missing_call"), _skipped),
        Job("not_joined", _diverged(1, kinds="not_joined", status="hung"), _not_joined),
        Job("swapped", _diverged(3, kinds="comm_swap"), _swapped),
        Job("other_op", _diverged(2, kinds="op_mismatch"), _other_op),
        Job(
            "pipeline",
            _diverged(2, kinds="p2p_mismatch missing_call", status="diverged hung"),
            _pipeline,
        ),
        Job("ddp", _diverged(3, kinds=f"op_mismatch {_ABSENT}"), _ddp),
        Job("graph", _diverged(3, kinds="capture_mismatch size_mismatch"), _graph),
        Job(
            "transfers",
            Truth(
                ("hung",),
                guilty=frozenset({"pid 2000", "pid 2001"}),
                kinds=frozenset({"transfer_stalled"}),
                places=frozenset({0, 1}),
            ),
            _transfers,
        ),
        Job("two_causes", _diverged(1, 3, kinds="op_mismatch not_joined"), _two_causes),
    )
}

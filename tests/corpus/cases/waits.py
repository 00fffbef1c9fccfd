"""Ranks that wait for others: absent, elsewhere, dead or merely late."""

from __future__ import annotations

from typing import Any

from tests.corpus.registry import Labelled, case, in_records_and_dumps, planted
from tests.corpus.truth import HEALTHY, LIKELY, UNDECIDED, Truth
from tests.corpus.workload import BEGAN_NS, Workload
from tests.corpus.writers import DUMPS, RECORDS

PAIRS = {"tp:0": (0, 1), "tp:1": (2, 3)}


# --- absent ---------------------------------------------------------------------------------------


@case("the last rank never comes to a call", sizes=(4, 16))
def absent(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.rest)
    return planted("not_joined", (job.odd,), groups=("world",), seqs=(seq,))


@case("gloo: rank 1 never comes to a call", backend="gloo")
def absent_on_gloo(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.but(1))
    return planted("not_joined", (1,), groups=("world",), seqs=(seq,))


@case("one of two waits in a call that the other has not posted", sizes=(2,))
def one_of_two_waits(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post((0,))
    kinds = "not_joined extra_call"
    return planted(kinds, candidates=(0, 1), groups=("world",), seqs=(seq,))


@case("two of four wait in a call that the others have not posted")
def two_of_four_wait(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post((0, 2))
    kinds = "not_joined extra_call"
    return planted(kinds, candidates=job.everybody, groups=("world",), seqs=(seq,))


@case("rank 0 alone waits in a call, and the others make none: they may be held up before it")
def alone_in_a_call(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post((0,), "all_gather", 3, site="metrics.py:88 compute")
    kinds = "not_joined extra_call"
    return planted(kinds, candidates=job.everybody, groups=("world",), seqs=(seq,))


@case(
    "rank 0 alone waits in a call; DDP's own calls are not recorded",
    formats=RECORDS,
    about={-1: {"unseen": [{"kind": "ddp", "text": "a DDP reducer posts from C++", "comms": []}]}},
)
def alone_beside_a_reducer(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post((0,), "all_gather", 3, site="metrics.py:88 compute")
    return planted(
        {"extra_call": LIKELY}, (0,), groups=("world",), seqs=(seq,), status=("diverged", "hung")
    )


@case(
    "ranks agree in the little that is recorded, and DDP's own calls are not",
    formats=RECORDS,
    running=True,
    about={-1: {"unseen": [{"kind": "ddp", "text": "a DDP reducer posts from C++", "comms": []}]}},
)
def little_is_recorded(job: Workload) -> Labelled:
    job.post(job.everybody, "broadcast", 64, root=0)
    job.post(job.everybody, "broadcast", 8, root=0)
    return Truth(("unknown",))


@case(
    "rank 3 does not come; DDP's own calls are not recorded",
    formats=RECORDS,
    about={-1: {"unseen": [{"kind": "ddp", "text": "a DDP reducer posts from C++", "comms": []}]}},
)
def absent_beside_a_reducer(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.rest)
    return planted({"not_joined": LIKELY}, (3,), groups=("world",), seqs=(seq,))


@case("tp ranks 0 1 made ten calls and ended; of 2 3 one made nine", groups=PAIRS)
def shorter_than_its_sister(job: Workload) -> Labelled:
    job.steps(1)
    for number in range(10):
        job.post((0, 1), "all_reduce", 8 + number, group="tp:0", waits=True)
        job.post((2,), "all_reduce", 8 + number, group="tp:1", waits=True)
        if number < 9:
            job.post((3,), "all_reduce", 8 + number, group="tp:1", waits=True)
    seq = job.next("tp:1", 3)
    return planted({"not_joined": LIKELY}, (3,), groups=("tp:1",), seqs=(seq,))


@case("tp ranks 0 1 made nine calls and ended; of 2 3 one waits in a tenth", groups=PAIRS)
def longer_than_its_sister(job: Workload) -> Labelled:
    job.steps(1)
    for number in range(9):
        job.post((0, 1), "all_reduce", 8 + number, group="tp:0", waits=True)
        job.post((2, 3), "all_reduce", 8 + number, group="tp:1", waits=True)
    seq = job.next("tp:1", 2)
    job.post((2,), "all_reduce", 30, group="tp:1", waits=True)
    return planted(
        {"extra_call": LIKELY}, (2,), groups=("tp:1",), seqs=(seq,), status=("diverged", "hung")
    )


@case("ranks wait in a chain whose end is rank 3", groups={**PAIRS, "pp:0": (1, 2)})
def chain_of_waits(job: Workload) -> Labelled:
    job.steps()
    seqs = job.next("tp:1", 2), job.next()
    job.post((0, 1), "all_reduce", 4, group="tp:0")
    job.post((2,), "all_reduce", 4, group="tp:1", waits=True)
    job.post((1,), "all_reduce", 6, group="pp:0", waits=True)
    job.post((0,), "all_reduce", 6, group="world", waits=True)
    return planted("not_joined", (3,), groups=("tp:1", "world"), seqs=seqs)


@case("healthy: taken from a running job while one rank is a call behind", running=True, quiet=0.1)
def running_job(job: Workload) -> Labelled:
    job.steps()
    job.post(job.everybody)
    job.post(job.but(1))
    return UNDECIDED


@case("one second after rank 1 was last seen, its peers wait for it", formats=RECORDS, quiet=1.0)
def waiting_for_a_second(job: Workload) -> Labelled:
    job.steps()
    job.post(job.but(1))
    return Truth(("unknown",), (), ("not_joined",))


@case("healthy: a rank that is slow in every step, seen in the middle", rounds=17, quiet=0.05)
def rounds_of_a_running_job(job: Workload) -> Labelled:
    job.steps(10)
    return UNDECIDED


@case(
    "the job hangs for a minute, then Ctrl-C ends all ranks",
    formats=RECORDS,
    quiet=60.0,
    aborted="KeyboardInterrupt: ",
)
def interrupted(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.but(1))
    return planted("not_joined", (1,), groups=("world",), seqs=(seq,))


@case(
    "healthy: Ctrl-C ends all ranks between two steps",
    formats=RECORDS,
    running=True,
    aborted="KeyboardInterrupt: ",
    backend="gloo",
)
def interrupted_at_rest(job: Workload) -> Labelled:
    job.steps()
    return UNDECIDED


# --- stalled --------------------------------------------------------------------------------------


@case(
    "gloo: all are in the same call, and it does not complete",
    sizes=(4, 2),
    backend="gloo",
    formats=RECORDS,
)
def stalled(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.everybody, unfit=True)
    return planted(
        "stalled", candidates=job.everybody, confidence=LIKELY, groups=("world",), seqs=(seq,)
    )


@case(
    "all are in the same call, and its time-out has passed",
    sizes=(4, 2),
    formats=DUMPS,
    timed_out=True,
    timing=True,
)
def stalled_past_its_timeout(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.everybody, unfit=True)
    return planted(
        "stalled", candidates=job.everybody, confidence=LIKELY, groups=("world",), seqs=(seq,)
    )


@case("all have started the same call ten minutes ago", formats=DUMPS, timing=True)
def stalled_and_started(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.everybody, unfit=True)
    return planted(
        "stalled",
        candidates=job.everybody,
        confidence=LIKELY,
        groups=("world",),
        seqs=(seq,),
        status=("hung", "unknown"),
    )


@case("healthy: all have started a call a moment ago", formats=DUMPS, timing=True, quiet=0.002)
def started_a_moment_ago(job: Workload) -> Labelled:
    job.steps()
    job.post(job.everybody, unfit=True)
    return UNDECIDED


@case("healthy: long idle after the last common call", running=True, sizes=(4, 2), backend="gloo")
def idle(job: Workload) -> Labelled:
    job.steps()
    return UNDECIDED


# --- dead -----------------------------------------------------------------------------------------


@case("rank 2 is killed between two calls; its peers wait in the next", sizes=(4,))
def killed(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.but(2), waits=True)
    job.end(2, "killed")
    return in_records_and_dumps(
        planted("dead_rank", (2,), groups=("world",), seqs=(seq,)),
        # The dump may be lost, and the rank be in the call like its peers.
        planted({"dead_rank": LIKELY}, (2,), groups=("world",), seqs=(seq,)),
    )


@case("in a pair, one process is killed and the other waits", sizes=(2,), formats=RECORDS)
def killed_pair(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post((0,), waits=True)
    job.end(1, "killed")
    return planted("dead_rank", (1,), groups=("world",), seqs=(seq,))


@case("rank 2 ends with an exception; its peers wait", formats=RECORDS)
def raised(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.but(2), waits=True)
    job.end(2, "RuntimeError: CUDA error: an illegal memory access was encountered")
    return planted("dead_rank", (2,), groups=("world",), seqs=(seq,))


@case("rank 2 has one batch fewer and ends in order; its peers wait", formats=RECORDS)
def ended_early(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.but(2), waits=True)
    job.end(2, "exit")
    return planted("dead_rank not_joined", (2,), groups=("world",), seqs=(seq,))


@case("gloo aborts rank 3 in the call whose size is smaller there", formats=RECORDS, backend="gloo")
def aborted_in_the_call(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.rest, "all_reduce", 256)
    job.post((3,), "all_reduce", 128)
    job.end(3, "killed")
    return planted("size_mismatch", (3,), groups=("world",), seqs=(seq,))


@case(
    "rank 3 raises in the call in which it posted another operation",
    formats=RECORDS,
    backend="gloo",
)
def raised_in_the_call(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.rest, "all_reduce", 256)
    job.post((3,), "broadcast", 256, root=0)
    job.end(3, "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer")
    return planted("op_mismatch", (3,), groups=("world",), seqs=(seq,))


@case("two of four left no record; two wait", formats=RECORDS, no_ring=(0, 3))
def two_left_no_record(job: Workload) -> Labelled:
    job.steps()
    job.post((1, 2))
    return planted("dead_rank not_joined", candidates=(0, 3), groups=("world",))


@case("two of four left no dump; two wait", formats=DUMPS, no_dump=(0, 3))
def two_left_no_dump(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post((1, 2))
    return planted("dead_rank not_joined", candidates=(0, 3), groups=("world",), seqs=(seq,))


@case("healthy: all ended in order, a moment apart", sizes=(4, 2))
def all_ended(job: Workload) -> Labelled:
    job.steps()
    job.post(job.everybody, "barrier")
    return HEALTHY


@case("healthy: the dump of rank 1 is lost", formats=DUMPS, no_dump=(1,))
def lost_dump(job: Workload) -> Labelled:
    job.steps()
    return Truth(("incomplete", "unknown"))


@case("healthy: rank 1 left no ring", formats=RECORDS, no_ring=(1,))
def lost_ring(job: Workload) -> Labelled:
    job.steps()
    return Truth(("incomplete", "unknown"))


@case("rank 3 posts another operation, and the dump of rank 1 is lost", formats=DUMPS, no_dump=(1,))
def lost_dump_and_other_op(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.rest, "all_reduce", 256)
    job.post((3,), "broadcast", 256, root=0)
    # Rank 1 may have posted what rank 3 did: two against two. Or it may be dead.
    truth = planted({"op_mismatch": LIKELY}, (3,), groups=("world",), seqs=(seq,))
    return truth.maybe(planted({"dead_rank": LIKELY}, (1,)))


@case("of four ranks two left dumps, and these differ", formats=DUMPS, no_dump=(0, 1))
def two_dumps_that_differ(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.rest, "all_reduce", 256)
    job.post((3,), "broadcast", 256, root=0)
    truth = planted("op_mismatch", candidates=(2, 3), groups=("world",), seqs=(seq,))
    return truth.maybe(planted("dead_rank", candidates=(0, 1)))


# --- groups that are made -----------------------------------------------------------------------


def creations(job: Workload, ranks: tuple[int, ...]) -> int:
    """Make groups on all ranks, the last one on some ranks alone."""
    for members in ((0, 1), (2, 3)):
        job.post(
            job.everybody,
            "new_group",
            0,
            group="groups",
            sizes=members,
            waits=True,
            dtype="gloo",
            site="setup.py:7 groups",
        )
    seq = job.next("groups")
    job.post(
        ranks,
        "new_group",
        0,
        group="groups",
        sizes=job.everybody,
        waits=True,
        dtype="gloo",
        site="setup.py:9 groups",
    )
    return seq


@case(
    "rank 3 does not make a group that its peers make",
    formats=RECORDS,
    backend="gloo",
    groups={"groups": (0, 1, 2, 3)},
)
def group_not_made(job: Workload) -> Labelled:
    job.post(job.everybody, "all_reduce", 8)
    seq = creations(job, (0, 1, 2))
    return planted("init_stalled not_joined", (3,), groups=("groups",), seqs=(seq,))


@case(
    "healthy: all ranks make the same groups",
    formats=RECORDS,
    backend="gloo",
    groups={"groups": (0, 1, 2, 3)},
)
def groups_made(job: Workload) -> Labelled:
    job.post(job.everybody, "all_reduce", 8)
    creations(job, job.everybody)
    job.post(job.everybody, "all_reduce", 8)
    return HEALTHY


# --- transfers between jobs -----------------------------------------------------------------------


def transfer(state: str) -> list[dict[str, Any]]:
    """Return lines of a decode engine that has asked for the KV blocks of one request."""
    common = {"transfer": "kv", "id": "cmpl-7", "engine": "decode-0", "peer": "prefill-0"}
    return [
        {**common, "direction": "recv", "state": each, "bytes": 1 << 20, "t_ns": BEGAN_NS + number}
        for number, each in enumerate(dict.fromkeys(("waiting", state)))
    ]


@case("a request waits for KV blocks that the prefill engine does not send", formats=("jsonl",))
def transfer_awaited(job: Workload) -> Labelled:
    job.running = True
    job.steps()
    job.lines = {rank: transfer("waiting") for rank in job.everybody}
    # The other engine is not among the records, so that no rank is a candidate.
    awaited = planted({"transfer_stalled": LIKELY})
    return Truth(("hung", "unknown")).maybe(awaited)


@case("healthy: a request got its KV blocks", formats=("jsonl",))
def transfer_done(job: Workload) -> Labelled:
    job.steps()
    job.lines = {rank: transfer("done") for rank in job.everybody}
    return HEALTHY

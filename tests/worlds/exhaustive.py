"""Diagnose all small jobs with one fault, and hold each verdict against all that may explain it.

Small jobs have up to three ranks, which make up to four calls on two communicators, in every
order. One rank has one fault of every kind at every place. For each of the different records that
they leave, all jobs with one fault that leave the same are enumerated as well. So it is known
which ranks the records may be put down to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

from tests.worlds.executor import Outcome
from tests.worlds.faults import MISMATCHES
from tests.worlds.rivals import Explanation, explanations
from tests.worlds.sample import verdict_on
from tests.worlds.score import causes_of, in_columns
from tests.worlds.small import Job, Records, at, finish, jobs, moments, records_of, settings

__all__ = ["BAD", "WORDS", "Case", "cases", "examine", "examples", "judge", "named", "run", "table"]

WORDS = (
    "right",
    "fair",
    "unknown",
    "other story",
    "wrong",
    "certain, with a rival",
    "certain, other story",
    "certain and wrong",
    "ok and hung",
    "false alarm",
)
"""``right``: the rank and what it did. ``fair``: nobody is named and the rank is among the
candidates, or a rank is named, without certainty, to which the same records may be put down.
``unknown``: no cause. ``other story``: the rank, and not what it did. ``wrong``: a rank to which
nothing can be put down, or candidates without the rank. ``certain, with a rival``: a rank is named
with certainty, though a fault of another one leaves the same records. ``certain, other story``: the
rank with certainty, and nothing that it may have done. ``certain and wrong``: with certainty a rank
to which nothing can be put down. ``ok and hung``: ``ok``, though ranks wait for ever. ``false
alarm``: a cause in records that a healthy job may leave."""
BAD = WORDS[5:]

_KINDS: Mapping[str, tuple[str, ...]] = {
    "left_out": ("missing_call",),
    "extra": ("extra_call",),
    "other_op": ("op_mismatch",),
    "other_size": ("size_mismatch", "split_mismatch"),
    "other_comm": ("comm_swap",),
    "swapped": ("order_cycle", *(f"{name}_mismatch" for name in MISMATCHES)),
    "kill": ("dead_rank", "not_joined", "missing_call"),
    "raise": ("dead_rank",),
    "exit": ("dead_rank", "not_joined", "missing_call"),
    "outside": ("not_joined",),
    "never_starts": ("dead_rank", "not_joined", "init_stalled"),
}
"""Kinds that say what a rank did, with certainty if need be."""
_LIKELY: Mapping[str, tuple[str, ...]] = {
    "other_comm": (
        "missing_call",
        "extra_call",
        "not_joined",
        *(f"{name}_mismatch" for name in MISMATCHES),
    ),
    "swapped": ("missing_call", "extra_call", "comm_swap", "not_joined"),
}


@dataclass(frozen=True)
class Case:
    """Different records and the smallest job that leaves them.

    Attributes:
        job: The job.
        records: What is recorded of it.
        acts: Acts of each rank before the records are taken; None where nothing moves any more.
    """

    job: Job
    records: Records
    acts: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """Its name: that of the job, and the acts of each rank."""
        return self.job.name + ("" if self.acts is None else f"@{','.join(map(str, self.acts))}")

    @property
    def outcome(self) -> Outcome:
        """How far the job has come."""
        world = self.job.world
        return finish(world) if self.acts is None else at(world, self.acts)


def cases(most: int = 4, *, running: bool = False) -> list[Case]:
    """Return all different records, those of small jobs first.

    Two that differ in the names of ranks 0 and 1 alone count as one.

    Args:
        most: Calls of the base program.
        running: Whether they are taken at every moment of the jobs, instead of at the end.
    """
    found: dict[Records, Case] = {}
    for setting in settings():
        for job in jobs(setting, most):
            world = job.world
            for acts in moments(world) if running else (None,):
                case = Case(job, Records(setting, (), (), not running), acts)
                records = records_of(setting, world, case.outcome)
                if records not in found and records.mirrored not in found:
                    found[records] = replace(case, records=records)
    return sorted(
        found.values(),
        key=lambda case: (case.job.setting.size, len(case.job.base), sum(case.acts or ())),
    )


def run(some: Sequence[Case], processes: int) -> list[dict[str, Any]]:
    """Diagnose cases in a number of processes."""
    if processes == 1:
        return list(map(result, some))
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        return list(pool.map(result, some, chunksize=20))


def result(case: Case) -> dict[str, Any]:
    """Diagnose a case, and judge the verdict."""
    outcome = case.outcome
    document = verdict_on(case.job.world, outcome)
    # What was played explains the records, also where the search does not reach its order.
    job = case.job
    rivals = [*explanations(case.records)] or [Explanation(job.fault, job.rank, job.place)]
    stuck = sorted(outcome.stuck()) if outcome.final else []
    word = judge(document, case, rivals, bool(stuck))
    return {
        "case": case.name,
        "fault": case.job.fault,
        "rank": case.job.rank,
        "place": case.job.place,
        "backend": case.job.setting.backend,
        "size": case.job.setting.size,
        "stuck": stuck,
        "ranks": sorted({each.rank for each in rivals}),
        "rivals": sorted({f"{each.fault} of rank {each.rank} at {each.place}" for each in rivals}),
        "programs": list(_programs(case, outcome)),
        "word": word,
        "status": document["status"],
        "causes": causes_of(document),
    }


def _programs(case: Case, outcome: Outcome) -> Iterator[str]:
    """Yield what each rank has posted, and where it is."""
    stuck = outcome.stuck()
    for rank, posted in enumerate(outcome.posted):
        words = []
        for each in posted:
            act = each.act
            shape = f" {list(act.shape)}" if act.shape not in ((), (12, 4)) else ""
            words.append(f"{act.op}{shape} {act.comm} :{act.line}")
        where = outcome.ended.get(rank) or outcome.held.get(rank) or "alive"
        if rank in case.job.absent:
            where = "never started"
        elif where == "exit":
            where = "exited normally"
        pending = f", waits in call {stuck[rank].index + 1}" if rank in stuck else ""
        yield f"rank {rank}: {', '.join(words) or 'no call'}; {where}{pending}"


def judge(
    document: Mapping[str, Any], case: Case, rivals: Sequence[Explanation], stuck: bool
) -> str:
    """Return one of :data:`WORDS` for a verdict as ``--json`` prints it."""
    causes = [each for each in document["findings"] if each["role"] == "cause"]
    status = document["status"]
    if any(each.rank < 0 for each in rivals):
        if causes or status in ("diverged", "hung"):
            return "false alarm"
        return "right" if status == "ok" else "unknown"
    if status == "ok":
        return "ok and hung" if stuck else "unknown"
    if not causes:
        return "unknown"
    words = [_judge_cause(cause, case, rivals) for cause in causes]
    bad = [word for word in words if word in BAD]
    return max(bad, key=WORDS.index) if bad else words[0]


def _judge_cause(cause: Mapping[str, Any], case: Case, rivals: Sequence[Explanation]) -> str:
    blamed, candidates = set(cause["diverging_ranks"]), set(cause["candidate_ranks"])
    sure = cause["confidence"] == "certain"
    ranks = {each.rank for each in rivals}
    if not blamed:
        return "fair" if candidates & ranks else "wrong"
    if not blamed <= ranks:
        return "certain and wrong" if sure else "wrong"
    if sure and len(ranks) > 1:
        return "certain, with a rival"
    own = [each for each in rivals if each.rank in blamed]
    if not any(cause["kind"] in _kinds(each, case.records, sure) for each in own):
        return "certain, other story" if sure else "other story"
    return "right" if blamed == {case.job.rank} else "fair"


def _kinds(each: Explanation, records: Records, sure: bool) -> Iterator[str]:
    yield from _KINDS[each.fault]
    if not sure:
        yield from _LIKELY.get(each.fault, ())
    if _agree(records):
        yield "not_joined"
        if records.ends[each.rank]:
            yield from ("dead_rank", "missing_call")
        if not sure:
            yield "order_cycle"


def _agree(records: Records) -> bool:
    """Return whether the calls of all ranks on each communicator agree as far as they go."""
    for label, members in records.setting.comms.items():
        words = [
            [act for act, _ in records.calls[rank] or () if act.comm == label] for rank in members
        ]
        longest = max(words, key=len)
        if any(longest[: len(word)] != word for word in words):
            return False
    return True


def named(name: str) -> Case | None:
    """Return the case of a name; None where no small job has it."""
    own, _, moment = name.partition("@")
    acts = tuple(map(int, moment.split(","))) if moment else None
    length = sum(letter.isalpha() for letter in own.split(":")[1])
    for setting in settings():
        for job in jobs(setting, length):
            if job.name == own:
                case = Case(job, Records(setting, (), (), acts is None), acts)
                return replace(case, records=records_of(setting, job.world, case.outcome))
    return None


def examine(name: str) -> Iterator[str]:
    """Yield the programs of a case, what explains its records, and the verdict."""
    case = named(name)
    if case is None:
        yield f"no small job is named {name}"
        return
    found = result(case)
    yield from _described(found)
    yield f"     score: {found['word']}"


def examples(results: Iterable[Mapping[str, Any]], count: int) -> Iterator[str]:
    """Yield the smallest cases with a bad word, of those alike in fault and verdict only one."""
    alike: dict[str, dict[tuple[object, ...], list[Mapping[str, Any]]]] = {}
    for each in results:
        if each["word"] in BAD:
            causes = tuple((c["kind"], c["confidence"], c["comm"]) for c in each["causes"])
            key = each["fault"], each["backend"], each["status"], causes
            alike.setdefault(each["word"], {}).setdefault(key, []).append(each)
    for word in BAD:
        found = list(alike.get(word, {}).values())
        total = sum(map(len, found))
        yield f"== {word}: {total} records, {len(found)} different failures"
        for number, same in enumerate(found[:count], 1):
            yield f"{number}. {len(same)} records; the smallest:"
            yield from _described(same[0])


def _described(each: Mapping[str, Any]) -> Iterator[str]:
    yield f"   {each['case']}"
    yield from (f"     {line}" for line in each["programs"])
    yield f"     explained by: {'; '.join(each['rivals'])}"
    yield f"     verdict: {each['status']}"
    for cause in each["causes"]:
        named = f"ranks {cause['ranks']}" if cause["ranks"] else f"one of {cause['candidates']}"
        yield (
            f"       {cause['confidence']} {cause['kind']}, {named},"
            f" call {cause['seq']} on {cause['comm']}: {cause['summary']}"
        )


def table(results: Iterable[Mapping[str, Any]]) -> str:
    """Return a table with a row for each fault, and how many cases can be decided."""
    counts: Counter[tuple[str, str]] = Counter()
    decidable: Counter[str] = Counter()
    for each in results:
        counts[each["fault"], each["word"]] += 1
        decidable[each["fault"]] += len(each["ranks"]) == 1
    faults = sorted({fault for fault, _ in counts})
    rows: list[tuple[str, ...]] = [("fault", "records", "decidable", *WORDS)]
    for name in (*faults, "all"):
        own = [
            sum(n for (fault, each), n in counts.items() if each == word and name in (fault, "all"))
            for word in WORDS
        ]
        sole = sum(n for fault, n in decidable.items() if name in (fault, "all"))
        rows.append((name, str(sum(own)), str(sole), *(str(count or "") for count in own)))
    return in_columns(rows)

"""What an answer about damaged rings is worth, beside the undamaged one and the truth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ncclscope.engine.verdict import Verdict
from ncclscope.errors import DamagedFileError
from ncclscope.model import DamagedCall, Finding, Run
from tests.damage.damages import Damage
from tests.damage.jobs import Job, Truth
from tests.damage.places import Places

__all__ = ["FAILURES", "WORDS", "Answer", "Named", "answer_of", "judge"]

WORDS = {
    "CRASH": "an exception that no user should see",
    "WRONG_CERTAIN": "certain, and of another rank or kind than the truth",
    "SILENT_OK": "ok where the job was not, or without a note where records are missing",
    "NAMED": "an innocent rank is named, or another story of one whose file is damaged is likely",
    "ALARM": "a healthy job hangs or has diverged",
    "DIFFERS": "another answer from the same records, on another host or after another boot",
    "ASTRAY": "ambiguous, and all candidates are innocent",
    "LOST": "the right answer is lost by a change outside of the diverging ranks' last calls",
    "LOWER": "less sure than undamaged, or lost by a change of these calls",
    "SAME": "as undamaged",
}
"""What an answer can be, the worst first."""
_RECORDLESS = ("dropped", "copied", "file-older")
"""Kinds that leave no record of a rank, or a whole one, as a process has that ended there."""
FAILURES = ("CRASH", "WRONG_CERTAIN", "SILENT_OK", "NAMED", "ALARM", "DIFFERS")


@dataclass(frozen=True)
class Named:
    """What one finding says.

    Attributes:
        kind: Its kind.
        confidence: How sure.
        role: ``cause`` or ``latent``.
        ranks: Ranks that it names, or processes as ``pid 2000``.
        candidates: Those among which it says that they are.
    """

    kind: str
    confidence: str
    role: str
    ranks: frozenset[str]
    candidates: frozenset[str]

    def __str__(self) -> str:
        who = ",".join(sorted(self.ranks)) or "of " + ",".join(sorted(self.candidates))
        return f"{self.role} {self.kind} {who} {self.confidence}"


@dataclass(frozen=True)
class Answer:
    """What a verdict says.

    Attributes:
        status: Of the verdict; ``refused`` where the input was, ``crash`` at other exceptions.
        named: What its findings name as causes, or as latent.
        noted: Whether something is said of missing records.
        held: Number of calls that could be read, by rank and communicator.
        summary: In a sentence.
    """

    status: str
    named: frozenset[Named] = frozenset()
    noted: bool = False
    held: frozenset[tuple[int, str, int]] = frozenset()
    summary: str = ""

    @property
    def causes(self) -> frozenset[Named]:
        """The causes alone."""
        return frozenset(each for each in self.named if each.role == "cause")

    def says_as(self, other: Answer) -> bool:
        """Return whether both say the same, whatever their notes."""
        return (self.status, self.named) == (other.status, other.named)


def answer_of(verdict: Verdict) -> Answer:
    """Return what a verdict says."""
    noted = verdict.notes or verdict.run.missing or not verdict.coverage.complete
    return Answer(
        verdict.status,
        frozenset(_named(verdict)),
        bool(noted),
        frozenset(_held(verdict.run)),
        verdict.summary,
    )


def _named(verdict: Verdict, where: str = "") -> Iterator[Named]:
    for finding in verdict.findings:
        if finding.role in ("cause", "latent"):
            yield Named(
                finding.kind,
                finding.confidence,
                finding.role,
                frozenset(_who(finding, where)),
                frozenset(f"{where}{rank}" for rank in finding.candidate_ranks),
            )
    for number, linked in enumerate(verdict.linked):
        yield from _named(linked, f"{where}{number}:")


def _who(finding: Finding, where: str) -> Iterator[str]:
    for rank in finding.diverging_ranks:
        yield f"{where}{rank}"
    for process in (finding.transfer or {}).get("processes") or ():
        yield f"pid {process['pid']}"


def _held(run: Run, where: str = "") -> Iterator[tuple[int, str, int]]:
    for rank in run.ranks:
        for key, log in rank.logs.items():
            try:
                calls = log.span(log.first, log.calls + 1)
            except DamagedFileError:  # the verdict did not need them all
                calls = ()
            yield rank.rank, where + key, sum(not isinstance(c, DamagedCall) for c in calls)
        for key, sent in rank.p2p.items():
            whole = sum(not isinstance(call, DamagedCall) for call in sent)
            yield rank.rank, f"{where}{key} p2p", whole
    for number, linked in enumerate(run.linked):
        yield from _held(linked, f"{where}{number}:")


def judge(
    job: Job, base: Answer, damage: Damage, answer: Answer, places: Mapping[str, Places]
) -> str:
    """Return one of :data:`WORDS`.

    Args:
        job: The job.
        base: The answer of the undamaged rings.
        damage: The damage.
        answer: The answer of the damaged ones.
        places: Parts of the rings.
    """
    truth = job.truth
    damaged = {_place(file) for file in damage.touched}
    lost = damaged if damage.kind in _RECORDLESS else set()
    if answer.status == "crash":
        return "CRASH"
    new = [each for each in answer.named if each not in base.named]
    if any(each.confidence == "certain" and _is_wrong(each, truth) for each in new):
        return "WRONG_CERTAIN"
    if answer.status == "ok" and (base.status != "ok" or _is_silent(base, answer)):
        return "SILENT_OK"
    if any(_names(each, truth, damaged, lost) for each in new):
        return "NAMED"
    if truth.is_healthy and answer.status in ("hung", "diverged"):
        return "ALARM"
    if answer.says_as(base):
        return "SAME"
    if damage.kind == "identity":
        # On the job's own host and boot, /proc shows as well that a process has ended.
        same = _without_confidence(answer) == _without_confidence(base)
        return "SAME" if same else "DIFFERS"
    if any(_is_astray(each, truth) for each in new if each.role == "cause"):
        return "ASTRAY"
    if _is_right(answer, base, truth) or _is_inside(damage, truth, places):
        return "LOWER"
    return "LOST"


def _without_confidence(answer: Answer) -> tuple[str, frozenset[Named]]:
    return answer.status, frozenset(replace(each, confidence="") for each in answer.named)


def _is_wrong(named: Named, truth: Truth) -> bool:
    """Return whether a finding contradicts the truth."""
    if named.kind not in truth.kinds:
        return True
    return _is_astray(named, truth)


def _is_astray(named: Named, truth: Truth) -> bool:
    if named.ranks:
        return not named.ranks <= truth.allowed
    return bool(named.candidates) and not named.candidates & truth.allowed


def _names(named: Named, truth: Truth, damaged: set[int], lost: set[int]) -> bool:
    """Return whether a finding names somebody who has done nothing, or for a bad file alone.

    That the others wait for a rank without a record is seen in theirs.
    """
    if named.ranks and not named.ranks <= truth.allowed:
        return True
    if named.confidence == "ambiguous":
        return False
    if _is_astray(named, truth):
        return True
    bad = {str(place) for place in damaged - (lost if named.kind == "dead_rank" else set())}
    return bool(named.ranks & bad) and named.kind not in truth.kinds


def _is_silent(base: Answer, answer: Answer) -> bool:
    """Return whether records are missing of which nothing is said."""
    if answer.noted:
        return False
    held = {each[:2]: each[2] for each in answer.held}
    return any(held.get((rank, key), 0) < count for rank, key, count in base.held)


def _is_right(answer: Answer, base: Answer, truth: Truth) -> bool:
    """Return whether all that the undamaged answer names is still named."""
    if answer.status not in truth.status:
        return False
    return all(
        any(
            (each.ranks, each.candidates) == (cause.ranks, cause.candidates)
            and each.kind in truth.kinds
            for each in answer.causes
        )
        for cause in base.causes
    )


def _is_inside(damage: Damage, truth: Truth, places: Mapping[str, Places]) -> bool:
    """Return whether a damage touches the last calls of those who have diverged.

    That a job is healthy rests on the last calls of all.
    """
    for file, touched in damage.touched.items():
        if _place(file) not in truth.places and not truth.is_healthy:
            continue
        own = places[file]
        parts = [*own.slots]
        if "transfer_stalled" in truth.kinds:
            parts += [own.sections["transfers"]]
        if touched is None or any(
            touched.start < part.stop and part.start < touched.stop for part in parts
        ):
            return True
    return False


def _place(file: str) -> int:
    return int(file.partition("-")[2].partition(".")[0])

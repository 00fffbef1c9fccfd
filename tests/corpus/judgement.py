"""How good an answer is, by rules that are the same for each tool.

*right*: the status is one that is right, each planted cause is reported with its kind, ranks or
candidates, communicator, call and call site, with no more confidence than the records allow, and
nothing else is reported as a cause. *silent*: a cause was planted, and none is reported. *partly*:
a planted rank, or one of the candidates, is among those that are named. *wrong*: anything else.

Of torch's analyzer, which has other words for kinds and none for confidence, ranks and call count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.comparison.score import Answer
from tests.corpus.truth import Cause, Truth

__all__ = ["Judged", "judge", "judge_torch"]

_RANKED = ("ambiguous", "likely", "certain")


@dataclass(frozen=True)
class Judged:
    """An answer and how good it is.

    Attributes:
        word: ``right``, ``partly``, ``silent``, ``refuses`` or ``wrong``.
        says: The answer, in a few words.
        problems: What is not right.
        false_alarm: Whether a cause is reported that was not planted.
        too_sure: Whether something that is not so is reported as certain.
    """

    word: str
    says: str
    problems: tuple[str, ...] = ()
    false_alarm: bool = False
    too_sure: bool = False


def judge(document: Mapping[str, Any], truth: Truth) -> Judged:
    """Hold a verdict, as ``--json`` prints it, against the truth."""
    causes = [each for each in document["findings"] if each["role"] == "cause"]
    problems = []
    if document["status"] not in truth.status:
        problems.append(f"status {document['status']}, not {'/'.join(truth.status)}")
    left = list(causes)
    for cause in truth.causes:
        found = min(left, key=lambda each: len(list(_problems(each, cause))), default=None)
        if found is None:
            problems.append(f"no {'/'.join(cause.kinds)}")
            continue
        left.remove(found)
        problems += _problems(found, cause)
    for cause in truth.optional:
        left = [each for each in left if list(_problems(each, cause))] + [
            each for each in left if not list(_problems(each, cause))
        ][1:]
    problems += [f"a cause that was not planted: {_says(each)}" for each in left]
    if truth.causes and document["verdict"] is None:
        problems.append("no verdict")
    if document["verdict"] is not None and not (truth.causes or truth.optional):
        problems.append("a verdict")
    latent = {each["kind"] for each in document["findings"] if each["role"] == "latent"}
    problems += [f"latent {kind}" for kind in sorted(latent - set(truth.latent))]
    planted = {
        rank
        for each in (*truth.causes, *truth.optional)
        for rank in (*each.ranks, *each.candidates)
    }
    blamed = {rank for each in causes for rank in each["diverging_ranks"]}
    named = blamed | {rank for each in causes for rank in each["candidate_ranks"]}
    word = "right"
    if problems:
        word = "partly" if named & planted and not blamed - planted else "wrong"
    if truth.causes and not causes:
        word = "silent"
    says = " + ".join(_says(each) for each in causes)
    singled = {rank for each in truth.causes for rank in each.ranks}
    return Judged(
        word=word,
        says=f"{document['status']}: {says}" if says else document["status"],
        problems=tuple(problems),
        false_alarm=bool(left),
        too_sure=bool(problems)
        and any(
            each["confidence"] == "certain" and not set(each["diverging_ranks"]) <= singled
            for each in causes
        ),
    )


def _problems(found: Mapping[str, Any], cause: Cause) -> Iterator[str]:
    """Yield what of a reported cause is not as planted, what matters most first."""
    if tuple(found["diverging_ranks"]) != cause.ranks:
        yield f"blames {found['diverging_ranks']}, not {list(cause.ranks)}"
    elif tuple(found["candidate_ranks"]) != cause.candidates:
        yield f"candidates {found['candidate_ranks']}, not {list(cause.candidates)}"
    if found["kind"] not in cause.kinds:
        yield f"{found['kind']}, not {'/'.join(cause.kinds)}"
    elif _RANKED.index(found["confidence"]) > _RANKED.index(cause.kinds[found["kind"]]):
        yield f"{found['confidence']}, at most {cause.kinds[found['kind']]}"
    label = (found["comm"] or {}).get("label", "")
    if cause.groups and label.replace("default_pg", "world") not in cause.groups:
        yield f"on {label or 'no communicator'}, not {'/'.join(cause.groups)}"
    if cause.seqs and found["seq"] not in cause.seqs:
        yield f"call {found['seq']}, not {'/'.join(map(str, cause.seqs))}"
    odd = found["odd"] or found["peers"] or {}
    for name, wanted in (("site", cause.site), ("user_site", cause.user_site)):
        place = odd.get(name) or ""
        if wanted and place.rpartition("/")[2] != wanted:
            yield f"{name} {place or None}, not {wanted}"
    if cause.extent and found["kind"] in ("missing_call", "extra_call"):
        wanted = f"{cause.extent} call"
        if wanted not in found["summary"]:
            yield f"not {wanted}s in: {found['summary']}"


def _says(found: Mapping[str, Any]) -> str:
    who = found["diverging_ranks"] or f"of {found['candidate_ranks']}"
    where = f" {found['comm']['label']}" if found["comm"] else ""
    call = f" call {found['seq']}" if found["seq"] else ""
    return f"{found['kind']} {who}{where}{call}, {found['confidence']}"


def judge_torch(answers: Sequence[Answer], truth: Truth) -> Judged:
    """Hold what torch's analyzer says against the truth: the worst of several file orders."""
    judged = [_judge_torch(answer, truth) for answer in answers]
    order = ("right", "partly", "silent", "refuses", "wrong")
    return max(judged, key=lambda each: order.index(each.word))


def _judge_torch(answer: Answer, truth: Truth) -> Judged:
    says = answer.text or "nothing"
    if answer.refused:
        return Judged("refuses", says)
    planted = {rank for cause in truth.causes for rank in (*cause.ranks, *cause.candidates)}
    seqs = {seq for cause in truth.causes for seq in cause.seqs}
    named = {rank for found in answer.findings for rank in found.ranks}
    if not truth.causes:
        alarm = bool(answer.findings)
        return Judged("wrong" if alarm else "right", says, false_alarm=alarm)
    if not answer.findings:
        return Judged("silent", says)
    first = answer.findings[0]
    whole = named == planted and (not seqs or first.seq in seqs)
    part = bool(named & planted) or (not named and first.seq in seqs)
    word = "right" if whole else "partly" if part else "wrong"
    return Judged(word, says, false_alarm=bool(named - planted))

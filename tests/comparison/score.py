"""How good an answer is, by rules that are the same for each tool.

An answer is a list of findings, in the order in which a person reads them; each names ranks,
or none, and a call, or none. What was planted is known. The answer is

- *right* when the first finding names exactly the planted ranks, and the planted call by its
  number, and no finding names another rank; of a healthy run, when there is no finding;
- *partly* right when some finding names a planted rank, or the planted call without a rank;
- *wrong* when there are findings, and none of them does;
- *silent* when there is no finding although something was planted;
- *refuses* when the tool ends without an answer.

Where nothing singles a rank out, the planted ranks are those among which it lies.
Of ncclscope the kind has to be right as well; other tools have other words.
"""

from __future__ import annotations

from dataclasses import dataclass

from ncclscope.engine.verdict import Verdict
from tests.comparison.scenarios import Truth

__all__ = ["Answer", "Named", "of_verdict", "score"]


@dataclass(frozen=True)
class Named:
    """One finding.

    Attributes:
        ranks: The ranks that it holds responsible; empty for none.
        seq: The call; 0 for none.
    """

    ranks: frozenset[int]
    seq: int = 0


@dataclass(frozen=True)
class Answer:
    """What a tool says of one run.

    Attributes:
        findings: In the order of reading, consequences left out.
        refused: Why it gives no answer; empty when it gives one.
        kind: What it calls the first finding, if that is to be compared, too.
    """

    findings: tuple[Named, ...] = ()
    refused: str = ""
    kind: str = ""

    @property
    def text(self) -> str:
        """What is named, in a few words."""
        if self.refused:
            return self.refused
        named = sorted({rank for finding in self.findings for rank in finding.ranks})
        seq = next((finding.seq for finding in self.findings if finding.seq), 0)
        ranks = f"rank{'s' * (len(named) > 1)} {' '.join(map(str, named))}" if named else ""
        return ", ".join(part for part in (self.kind, ranks, f"call {seq}" if seq else "") if part)


def score(answer: Answer, truth: Truth | None) -> str:
    """Return the word for an answer."""
    if answer.refused:
        return "refuses"
    if truth is None:
        return "wrong" if answer.findings else "right"
    if not answer.findings:
        return "silent"
    planted = frozenset(truth.ranks or truth.candidates)
    named = {rank for finding in answer.findings for rank in finding.ranks}
    first = answer.findings[0]
    if len(truth.ranks) > 1:  # several faults, which may be reported one by one
        whole = named == planted and first.ranks <= planted
    else:
        whole = first.ranks == planted and named <= planted
    if whole and first.seq in (truth.seq, *truth.also) and answer.kind in ("", truth.kind):
        return "right"
    if named & planted or any(f.seq == truth.seq and not f.ranks for f in answer.findings):
        return "partly"
    return "wrong"


def of_verdict(verdict: Verdict) -> Answer:
    """Return ncclscope's answer; latent findings count where nothing hangs or differs."""
    roles = ("cause",) if verdict.cause is not None else ("latent",)
    found = [finding for finding in verdict.findings if finding.role in roles]
    return Answer(
        findings=tuple(
            Named(frozenset(f.diverging_ranks or f.candidate_ranks), f.seq or 0) for f in found
        ),
        kind=found[0].kind if found else "",
    )

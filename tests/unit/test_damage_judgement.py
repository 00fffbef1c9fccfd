"""The referee of damaged rings: what it counts as wrong, and that it sees what a reader sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.damage.damages import KINDS, Damage
from tests.damage.jobs import JOBS
from tests.damage.judgement import Answer, Named, judge
from tests.damage.reading import fingerprint_file
from tests.damage.sweep import Sweep

INNOCENT, GUILTY = frozenset({"0"}), frozenset({"3"})
NOBODY: frozenset[str] = frozenset()


@pytest.fixture(scope="module")
def skipped() -> Iterator[Sweep]:
    """Return the rings of a job in which rank 3 skipped a call."""
    with Sweep(JOBS["skipped"]) as sweep:
        yield sweep


def says(
    status: str,
    kind: str = "missing_call",
    ranks: frozenset[str] = NOBODY,
    candidates: frozenset[str] = NOBODY,
    confidence: str = "certain",
) -> Answer:
    return Answer(status, frozenset({Named(kind, confidence, "cause", ranks, candidates)}))


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (says("diverged", ranks=GUILTY), "SAME"),
        (says("diverged", ranks=GUILTY, confidence="likely"), "LOWER"),
        (says("diverged", ranks=INNOCENT), "WRONG_CERTAIN"),
        (says("diverged", ranks=INNOCENT | GUILTY), "WRONG_CERTAIN"),
        (says("hung", "dead_rank", GUILTY), "WRONG_CERTAIN"),
        (says("diverged", ranks=INNOCENT, confidence="likely"), "NAMED"),
        (says("hung", "dead_rank", frozenset({"1"}), confidence="ambiguous"), "NAMED"),
        (says("diverged", candidates=INNOCENT, confidence="ambiguous"), "ASTRAY"),
        (says("diverged", candidates=INNOCENT | GUILTY, confidence="ambiguous"), "LOST"),
        (Answer("ok", noted=True), "SILENT_OK"),
        (Answer("unknown"), "LOST"),
        (Answer("crash"), "CRASH"),
    ],
)
def test_an_answer_is_held_against_the_truth(skipped: Sweep, answer: Answer, word: str) -> None:
    (damage,) = (one for one in skipped.damages(["dropped"]) if "process-1" in one.name)

    assert judge(skipped.job, skipped.base, damage, answer, skipped.places) == word


def test_a_rank_may_not_be_named_for_its_own_damaged_file(skipped: Sweep) -> None:
    """Unlike one without a record, for which the others are seen to wait."""
    dead = says("hung", "dead_rank", GUILTY, confidence="likely")
    for kind, word in (("tail-cut", "NAMED"), ("dropped", "LOWER")):
        damage = next(one for one in skipped.damages([kind]) if "process-3" in one.name)
        assert judge(skipped.job, skipped.base, damage, dead, skipped.places) == word
        unknown = Answer("unknown")
        assert judge(skipped.job, skipped.base, damage, unknown, skipped.places) == "LOWER"


def test_a_healthy_job_is_not_ok_in_silence_when_calls_are_missing() -> None:
    with Sweep(JOBS["healthy"]) as sweep:
        (damage,) = (one for one in sweep.damages(["dropped"]) if "process-1" in one.name)
        fewer = frozenset(each for each in sweep.base.held if each[0] != 1)

        def word(answer: Answer) -> str:
            return judge(sweep.job, sweep.base, damage, answer, sweep.places)

        assert word(Answer("ok", held=fewer)) == "SILENT_OK"
        assert word(Answer("ok", held=fewer, noted=True)) == "SAME"
        assert word(says("hung", "stalled", confidence="ambiguous")) == "ALARM"


def test_all_rings_are_whole_again_after_each_damage(skipped: Sweep) -> None:
    seen: Counter[str] = Counter()
    for damage in skipped.damages(KINDS):
        if not damage.is_part(0, 300) and seen[damage.kind]:
            continue
        seen[damage.kind] += 1
        with skipped.damaged(damage):
            read = {path.name: path.read_bytes() for path in skipped.directory.iterdir()}
        assert read != {name: ages[-1] for name, ages in skipped.rings.items()}, damage.name
        for name, ages in skipped.rings.items():
            assert (skipped.directory / name).read_bytes() == ages[-1], damage.name
    assert {"bit-records", "bit-header", "dropped", "copied", "page-older", "tail-cut"} <= set(seen)


def test_parts_of_the_sweep_hold_each_damage_once(skipped: Sweep) -> None:
    damages = list(skipped.damages(["bit-header", "tail-cut"]))
    parts = [sum(one.is_part(part, 7) for one in damages) for part in range(7)]

    assert sum(parts) == len({one.name for one in damages}) == len(damages)
    assert all(parts)


def test_a_fingerprint_shows_what_a_reader_sees(skipped: Sweep) -> None:
    """Each field of the newest record counts, such as the call site, which no rank is judged by."""
    path = skipped.directory / "process-1.ring"
    whole = fingerprint_file(path)
    assert fingerprint_file(path) == whole

    def seen(damage: Damage) -> bytes:
        with skipped.damaged(damage):
            return fingerprint_file(path)

    newest = skipped.places["process-1.ring"].slots[-1]
    flips = [
        damage
        for damage in skipped.damages(["byte-records"])
        if "process-1" in damage.name and int(damage.name.split("/")[2]) in newest
    ]
    different = [damage for damage in flips if seen(damage) != whole]
    assert len(different) > 0.9 * len(flips)

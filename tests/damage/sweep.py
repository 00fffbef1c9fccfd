"""Damage the rings of one job, one damage after the other, and judge each answer."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from ncclscope.engine import verdict as verdicts
from ncclscope.engine.registry import load_analyzers
from ncclscope.errors import NcclscopeError
from ncclscope.readers import open_run
from tests.damage.damages import Damage, damages_of
from tests.damage.jobs import Job
from tests.damage.judgement import Answer, answer_of, judge
from tests.damage.places import Places, places_of
from tests.damage.reading import fingerprint_file
from tests.damage.recording import MEMORY, Rings, record

__all__ = ["WHOLE_JOBS", "Result", "Sweep", "ask"]

WHOLE_JOBS = ("identity", "clock")
"""Kinds for which the job is recorded anew."""


@dataclass
class Result:
    """Counts of one sweep.

    Attributes:
        counts: Number of damages by job, kind and word.
        found: Names of damages and what was said, by job, kind and word.
        asked: Number of different runs that were diagnosed.
    """

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    found: dict[tuple[str, str, str], list[tuple[str, str]]] = field(default_factory=dict)
    asked: int = 0

    def add(self, job: str, damage: Damage, word: str, answer: Answer, where: str = "") -> None:
        """Count an answer.

        Args:
            job: Name of the job.
            damage: The damage.
            word: What the answer is worth.
            answer: The answer.
            where: The damaged place, in words.
        """
        key = job, damage.kind, word
        self.counts[key] += 1
        if word not in ("SAME", "LOWER"):
            says = f"{where}{answer.status}: {'; '.join(map(str, answer.named))}"
            self.found.setdefault(key, []).append((damage.name, says))

    def merge(self, other: Result) -> None:
        """Add another sweep's counts."""
        self.counts += other.counts
        self.asked += other.asked
        for key, names in other.found.items():
            self.found.setdefault(key, []).extend(names)


class Sweep:
    """The rings of one job in a folder, where they are damaged and restored.

    Args:
        job: The job.

    Attributes:
        base: The answer of the undamaged rings.
        asked: Number of runs that were diagnosed.
    """

    def __init__(self, job: Job) -> None:
        verdicts.load_analyzers = lru_cache(load_analyzers)  # type: ignore[attr-defined]
        self.job = job
        self.rings: Rings = record(job.write())
        self._folder = TemporaryDirectory(prefix="ncclscope-damage-", dir=MEMORY)
        self.directory = Path(self._folder.name)
        for name, ages in self.rings.items():
            (self.directory / name).write_bytes(ages[-1])
        self.places: dict[str, Places] = {
            name: places_of(self.directory / name, ages) for name, ages in self.rings.items()
        }
        self._whole = {name: fingerprint_file(self.directory / name) for name in self.rings}
        self._known: dict[tuple[bytes, ...], Answer] = {}
        self.asked = 0
        self.base = ask(self.directory)

    def close(self) -> None:
        """Remove the folder."""
        self._folder.cleanup()

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def damages(self, kinds: Iterable[str], seed: int = 0) -> Iterator[Damage]:
        """Yield the damages of some kinds."""
        return damages_of(self.rings, self.places, tuple(kinds), seed)

    def judge(self, damage: Damage, *, memoised: bool = True) -> tuple[str, Answer]:
        """Return what the answer to a damage is worth, and the answer."""
        with self.damaged(damage):
            answer = self._answer(damage) if memoised else ask(self.directory)
        return judge(self.job, self.base, damage, answer, self.places), answer

    def where(self, damage: Damage) -> str:
        """Return which of the newest records a damage of one byte is in, and where in it."""
        for file, touched in damage.touched.items():
            newest = self.places[file].newest
            for back, part in enumerate(reversed(newest)):
                if touched is not None and len(touched) == 1 and touched.start in part:
                    return f"record {-back}, byte {touched.start - part.start}: "
        return ""

    @contextlib.contextmanager
    def damaged(self, damage: Damage) -> Iterator[None]:
        """Damage the files, and restore them."""
        for name, new in damage.change.items():
            path = self.directory / name
            if new is None:
                path.unlink()
            elif isinstance(new, bytes):
                path.write_bytes(new)
            else:
                _put(path, *new)
        try:
            yield
        finally:
            for name, new in damage.change.items():
                late = self.rings[name][-1]
                if isinstance(new, tuple):
                    start, data = new
                    _put(self.directory / name, start, late[start : start + len(data)])
                else:
                    (self.directory / name).write_bytes(late)

    def _answer(self, damage: Damage) -> Answer:
        key = tuple(
            fingerprint_file(self.directory / name) if name in damage.change else whole
            for name, whole in self._whole.items()
        )
        known = self._known.get(key)
        if known is None:
            self.asked += 1
            known = self._known[key] = ask(self.directory)
        return known

    def recorded_anew(self, kind: str) -> Iterator[tuple[Damage, str, Answer]]:
        """Yield the answers on the same job elsewhere, or with clocks that are set back."""
        scripts = self.job.elsewhere() if kind == "identity" else self.job.set_back()
        for name, script in scripts:
            damage = Damage(kind, f"{kind}/{name}", dict, {})
            with TemporaryDirectory(prefix="ncclscope-damage-", dir=MEMORY) as folder:
                for file, ages in record(script).items():
                    Path(folder, file).write_bytes(ages[-1])
                answer = ask(Path(folder))
            self.asked += 1
            yield damage, judge(self.job, self.base, damage, answer, self.places), answer


def ask(directory: Path) -> Answer:
    """Return the answer on the rings of a folder."""
    try:
        return answer_of(verdicts.diagnose(open_run(directory)))
    except NcclscopeError as error:
        return Answer("refused", noted=True, summary=str(error))
    except Exception:
        return Answer("crash", summary=traceback.format_exc())


def _put(path: Path, offset: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, data, offset)
    finally:
        os.close(descriptor)

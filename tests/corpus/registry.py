"""The cases: each a function that plants something in a job and returns the truth about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from tests.corpus import writers
from tests.corpus.truth import AMBIGUOUS, CERTAIN, Cause, Truth, status_of
from tests.corpus.workload import Workload

__all__ = ["Case", "Labelled", "all_cases", "case", "in_records_and_dumps", "planted", "singled"]

Labelled = Truth | Mapping[str, Truth]
Plant = Callable[[Workload], Labelled]

_cases: dict[str, Case] = {}


@dataclass(frozen=True)
class Case:
    """One case, in one format.

    Attributes:
        name: Unique.
        title: What happens, in a line.
        format: One of :data:`tests.corpus.writers.FORMATS`.
        size: World size.
        plant: Adds programs to a job and returns what it has planted.
        options: Of the job.
    """

    name: str
    title: str
    format: str
    size: int
    plant: Plant
    options: Mapping[str, Any]

    @property
    def is_dump(self) -> bool:
        """Whether torch's own analyzer reads it."""
        return self.format in writers.DUMPS

    def truth(self) -> Truth:
        """Return what is planted."""
        return self._planted()[1]

    def groups(self) -> Mapping[str, tuple[int, ...]]:
        """Return the members of each communicator, by label."""
        return self._planted()[0].groups

    def write(self, directory: Path) -> Truth:
        """Write the records into a new folder, and return what is planted."""
        workload, truth = self._planted()
        directory.mkdir(parents=True)
        writers.write(workload, directory, self.format)
        return truth

    def _planted(self) -> tuple[Workload, Truth]:
        workload = Workload(self.size, seed=self.name, **self.options)
        found = self.plant(workload)
        return workload, found if isinstance(found, Truth) else found[self.format]


def case(
    title: str,
    *,
    sizes: Sequence[int] = (4,),
    formats: Sequence[str] = writers.FORMATS,
    **options: Any,
) -> Callable[[Plant], Plant]:
    """Register a function as a case for each world size and format.

    Args:
        title: What happens, in a line.
        sizes: World sizes.
        formats: Those in which the records show what it is about.
        **options: Attributes of the :class:`~tests.corpus.workload.Workload`.
    """

    def register(plant: Plant) -> Plant:
        for size in sizes:
            other = "_pair" if size == 2 else f"_{size}"
            name = plant.__name__ + (other if size != sizes[0] else "")
            for kind in formats:
                full = f"{name}.{kind}"
                if full in _cases:
                    raise ValueError(f"two cases are called {full}")
                _cases[full] = Case(full, title, kind, size, plant, options)
        return plant

    return register


def all_cases() -> Mapping[str, Case]:
    """Return all cases by name."""
    package = import_module("tests.corpus.cases")
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return _cases


def planted(
    kinds: str | Mapping[str, str],
    ranks: Sequence[int] = (),
    *,
    candidates: Sequence[int] = (),
    confidence: str = "",
    status: Sequence[str] = (),
    latent: Sequence[str] = (),
    **more: Any,
) -> Truth:
    """Return the truth of a run with one cause.

    Args:
        kinds: The right kind, or several with the highest confidence allowed for each.
        ranks: Ranks that the records single out.
        candidates: Where they single out none: the ranks among which it lies.
        confidence: The highest allowed; *ambiguous* where there are candidates, else *certain*.
        status: What is right; follows from the kinds where absent.
        latent: Kinds that may be reported besides.
        **more: Further attributes of the :class:`~tests.corpus.truth.Cause`.
    """
    highest = confidence or (AMBIGUOUS if candidates else CERTAIN)
    known = dict.fromkeys(kinds.split(), highest) if isinstance(kinds, str) else kinds
    cause = Cause(known, tuple(sorted(ranks)), tuple(sorted(candidates)), **more)
    return Truth(tuple(status) or status_of(known), (cause,), tuple(latent))


def singled(job: Workload, kinds: str | Mapping[str, str], **more: Any) -> Truth:
    """Return the truth where a rank has diverged: in a pair nothing singles it out."""
    if job.size == 2:
        names = kinds if isinstance(kinds, str) else " ".join(kinds)
        return planted(names, candidates=job.everybody, **{**more, "confidence": AMBIGUOUS})
    return planted(kinds, (job.odd,), **more)


def in_records_and_dumps(records: Truth, dumps: Truth) -> Mapping[str, Truth]:
    """Return truths that depend on the format."""
    return {
        **dict.fromkeys(writers.RECORDS, records),
        **dict.fromkeys(writers.DUMPS, dumps),
    }


def with_site(truth: Truth, site: str, user_site: str = "") -> Truth:
    """Return a truth that asks for the call site of the diverging rank, too."""
    causes = tuple(replace(cause, site=site, user_site=user_site) for cause in truth.causes)
    return replace(truth, causes=causes)

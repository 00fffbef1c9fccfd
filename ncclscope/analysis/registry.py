"""Find analyzers by their entry points, built-in ones and those of other packages alike."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata
from typing import Protocol

from ncclscope.analysis.case import Case
from ncclscope.errors import NcclscopeError
from ncclscope.model import Finding

__all__ = ["GROUP", "Analyzer", "AnalyzerError", "load_analyzers"]

GROUP = "ncclscope.analyzers"


class AnalyzerError(NcclscopeError):
    """An analyzer cannot be loaded."""


class Analyzer(Protocol):
    """One diagnosis.

    The first line of its docstring is its help text. It reads the case only: no files, no clock.

    An analyzer that describes the same calls more precisely than another one lists the kinds that
    it replaces in a class attribute ``refines``, such as ``("extra_call",)``. Without that
    attribute it replaces none.
    """

    name: str

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield the findings in a run."""
        ...


def load_analyzers() -> list[Analyzer]:
    """Return an instance of each installed analyzer: built-in ones, then those of other packages.

    Raises:
        AnalyzerError: An analyzer cannot be loaded; the error names its distribution.
    """
    analyzers: list[Analyzer] = []
    points = metadata.entry_points(group=GROUP)
    # Each access to a distribution's name reads its metadata file.
    owners = {point.dist: "" for point in points}
    owners |= {dist: dist.name for dist in owners if dist}

    def load_order(point: metadata.EntryPoint) -> tuple[bool, str]:
        """Return a sort key with built-in analyzers first: of equal findings, the first wins."""
        return owners[point.dist] != "ncclscope", point.name

    for point in sorted(points, key=load_order):
        try:
            analyzers.append(point.load()())
        except Exception as error:
            owner = point.dist.name if point.dist else "an unknown distribution"
            raise AnalyzerError(
                f"analyzer {point.name} of {owner} cannot be loaded: {error}",
                f"update or remove {owner}",
            ) from error
    if not analyzers:
        raise AnalyzerError(
            "no analyzer is installed", "install ncclscope with pip rather than copying it"
        )
    return analyzers

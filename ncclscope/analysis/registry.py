"""Analyzers, found by entry point like anybody else's."""

from __future__ import annotations

import inspect
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

    Its first line of documentation is its help. It reads the case and nothing else: no
    files, no clock.

    An analyzer that describes the same calls more closely than another one names the kinds it
    replaces in a class attribute ``refines``, such as ``("extra_call",)``. One without it refines
    nothing.
    """

    name: str

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yields what it finds in a run."""
        ...


def load_analyzers() -> list[Analyzer]:
    """Returns an instance of each installed analyzer: our own, then those of other packages.

    Raises:
        AnalyzerError: One cannot be loaded; it names the distribution it came with.
    """
    analyzers: list[Analyzer] = []
    points = metadata.entry_points(group=GROUP)
    # Each time that a distribution is asked for its name, it reads its file of metadata.
    owners = {point.dist: "" for point in points}
    owners |= {dist: dist.name for dist in owners if dist}

    def load_order(point: metadata.EntryPoint) -> tuple[bool, str]:
        """Ours first: of findings that nothing else tells apart, the first one is the verdict."""
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


def help_text(analyzer: Analyzer) -> str:
    """Returns the first line of an analyzer's documentation."""
    return (inspect.getdoc(analyzer) or "").partition("\n")[0]

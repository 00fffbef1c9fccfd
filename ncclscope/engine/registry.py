"""Find analyzers by their entry points, built-in ones and those of other packages alike."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata
from typing import Protocol

from ncclscope.engine.case import Case
from ncclscope.errors import NcclscopeError
from ncclscope.model import Finding

GROUP = "ncclscope.analyzers"

BUILT_IN = (
    *("capture_mismatch", "comm_swap", "dead_rank", "dtype_mismatch", "extra_call"),
    *("group_order", "init_stalled", "missing_call", "not_joined", "not_scheduled", "op_mismatch"),
    *("order_cycle", "p2p_mismatch", "redop_mismatch", "root_mismatch", "rpc_stalled"),
    *("size_mismatch", "split_mismatch", "stack_classes", "stalled", "transfer_stalled"),
)
"""Built-in analyzers. Of equal findings, the first counts."""

MODULES = dict.fromkeys(("dtype_mismatch", "redop_mismatch", "root_mismatch"), "parameter_mismatch")
"""Modules of analyzers that are not in one of their own."""


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
    for point in (*_built_in(), *_others()):
        try:
            analyzers.append(point.load()())
        except Exception as error:
            owner = point.dist.name if point.dist else "ncclscope"
            raise AnalyzerError(
                f"analyzer {point.name} of {owner} cannot be loaded: {error}",
                f"update or remove {owner}",
            ) from error
    return analyzers


def _built_in() -> Iterable[metadata.EntryPoint]:
    """Yield the built-in analyzers, whatever the metadata of the installation says.

    An installation whose entry points are older than its files would lack some, and answer OK.
    """
    for name in BUILT_IN:
        kind = "".join(part.capitalize() for part in name.split("_"))
        yield metadata.EntryPoint(
            name, f"ncclscope_analyzers.{MODULES.get(name, name)}:{kind}", GROUP
        )


def _others() -> list[metadata.EntryPoint]:
    """Return the analyzers of other packages, by name."""
    points = metadata.entry_points(group=GROUP)
    return sorted(
        (point for point in points if not point.value.startswith("ncclscope_analyzers.")),
        key=lambda point: point.name,
    )

"""Kernels that keep each other from starting: a cooperative launch needs all its SMs at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ncclscope.engine.waits.waits import PendingCall
from ncclscope.model import Run
from ncclscope.wording.waits import Wait, launches_cooperatively


def contention(run: Run, here: PendingCall, there: PendingCall) -> tuple[tuple[str, ...], str]:
    """Return what is recorded of how two libraries launch, and what follows for their calls.

    Args:
        run: The run.
        here: A call that ranks posted before `there`, which others posted first.
        there: A call of another library.

    Returns:
        Lines of evidence, and the conclusion; nothing where no launch is known to be cooperative.
    """
    if here.comm.backend == there.comm.backend:
        return (), ""
    for pending, other in ((here, there), (there, here)):
        if lines := tuple(dict.fromkeys(_lines(run, pending))):
            return lines, Wait.HOLDS_SMS.of(other, pending)
    return (), ""


def _lines(run: Run, pending: PendingCall) -> Iterator[str]:
    """Yield how the library of a call launches its kernels, as its ranks noted it."""
    library = pending.comm.backend
    for number in pending.comm.ranks:
        rank = run.by_rank.get(number)
        launches = None if rank is None else rank.details.get("launches")
        about = launches.get(library) if isinstance(launches, Mapping) else None
        if not isinstance(about, Mapping):
            continue
        sms, of = (n if isinstance(n := about.get(k), int) else 0 for k in ("sms", "of"))
        yield launches_cooperatively(library, sms, of)

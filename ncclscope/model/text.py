"""Text for ranks, shapes and numbers."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence

from ncclscope.model.unranked import unranked

_SIZES_SHOWN = 16


def shape_text(shape: Sequence[int] | None) -> str:
    """Return ``[15,2]``; empty where the shape is not known."""
    return "" if shape is None else f"[{','.join(map(str, shape))}]"


def sizes_text(sizes: Sequence[int]) -> str:
    """Return ``14,16``; for a long list its beginning and its length."""
    shown = ",".join(map(str, sizes[:_SIZES_SHOWN]))
    return shown if len(sizes) <= _SIZES_SHOWN else f"{shown},... ({len(sizes)} in all)"


def status_text(status: int) -> str:
    """Return ``exit status 3``, or ``SIGKILL`` for the number of a signal, which is negative."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def plural(count: int, noun: str) -> str:
    """Return ``1 call``, ``17 calls`` or ``2 processes``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ``rank 3`` or ``ranks 0-2 5``; ``no rank`` for none.

    Processes without a rank are named by pid: ``pids 4711 4712``, ``ranks 0-2 and pid 4711``.
    """
    every = set(ranks)
    pids = unranked(every)
    numbers = sorted(every - {*pids})
    if pids:
        noun = "pid" if len(pids) == 1 else "pids"
        named = f"{noun} {' '.join(str(one.pid) for one in pids)}"
        return f"{ranks_text(numbers)} and {named}" if numbers else named
    if not numbers:
        return "no rank"
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    texts = []
    for low, high in spans:
        if high - low >= 2:
            texts.append(f"{low}-{high}")
        else:
            texts += [str(number) for number in range(low, high + 1)]
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {' '.join(texts)}"


def verb(ranks: Iterable[int], plain: str) -> str:
    """Return ``wait``, or ``waits`` for a single rank."""
    return f"{plain}s" if len(set(ranks)) == 1 else plain

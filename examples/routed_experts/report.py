"""The tables, 80 columns wide."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from experiments import Measured
from volume import PREFILL, Volume

__all__ = ["answer_table", "load_table", "remarks", "volume_table"]

_WIDTH = 80
_SEED = ("0", "576", "~1,500,000")
"""What the proposal says of the same three kinds of steps."""


def load_table(rows: Sequence[Measured]) -> list[str]:
    """Return throughput, stalls and waits, and whether anything hung."""
    lines = [
        f"{'':22}{'tokens':>9}{'longest':>10}{'of it':>9}{'longest':>12}{'of its':>10}",
        f"{'':22}{'/s':>9}{'stall ms':>10}{'routing':>9}{'collective':>12}{'timeout':>10}"
        f"{'hung':>8}",
    ]
    for one in rows:
        figures = one.figures
        lines.append(
            f"{one.row.title:22}{one.throughput:9.1f}{figures['stall_us'] / 1e3:10.1f}"
            f"{figures['experts_us'] / 1e3:9.1f}{figures['wait_us'] / 1e3:9.1f} ms"
            f"{one.timeout_share:10.1%}{'YES' if one.hung else 'no':>8}"
        )
    return lines


def answer_table(rows: Sequence[Measured]) -> list[str]:
    """Return the score of the answers, and whether the ranks agree."""
    lines = [
        f"{'':22}{'':9}{'rows of routing':^28}{'collectives':>13}",
        f"{'':22}{'answers':>9}{'right':>10}{'missing':>9}{'wrong':>9}{'recorded':>13}"
        f"{'parity':>8}",
    ]
    for one in rows:
        judged = one.judged
        parity = "ok" if one.parity else one.workers.status
        lines.append(
            f"{one.row.title:22}{judged.answered:9,}{judged.right:10,}{judged.missing:9,}"
            f"{judged.wrong:9,}{one.workers.calls:13,}{parity:>8}"
        )
    return lines


def remarks(rows: Sequence[Measured]) -> list[str]:
    """Return in words what the tables do not say."""
    remarks = [_remark(one) for one in rows]
    old = [one for one in rows if one.row.way == "old" and (one.row.save or one.row.read)]
    if old and not any(one.hung for one in old):
        most = max(one.timeout_share for one in old)
        remarks.append(
            f"The old way did not hang here: no collective took more than {most:.1%} of its "
            f"timeout of {old[0].timeout:.1f} s."
        )
    return [line for text in remarks for line in wrap(text, _WIDTH, subsequent_indent="  ")]


def _remark(one: Measured) -> str:
    figures = one.figures
    remarks = [
        f"{one.row.title}: {figures['steps']} steps in {one.seconds:.1f} s, "
        f"{figures['preemptions']} preemptions, {figures['cached_tokens']:,} tokens cached, "
        f"{figures['ended']} requests ended in one step"
    ]
    if figures["save_us"]:
        remarks.append(f"longest wait and write of a worker {figures['save_us'] / 1e3:.1f} ms")
    if one.hung:
        remarks.append(f"the rings say {one.workers.status}, {one.workers.summary}")
    if one.judged.unanswered:
        remarks.append(f"{one.judged.unanswered} requests without an answer")
    return "; ".join(remarks)


def volume_table(volumes: Sequence[Volume]) -> list[str]:
    """Return bytes on the wire from worker to scheduler, and in answers."""
    kinds = [volume.dtype for volume in volumes]
    lines = [f"{'':40}" + "".join(f"{kind:>13}" for kind in kinds) + f"{'seed':>13}"]
    steps = (
        ("nobody opted in", "nobody", _SEED[0]),
        ("one token of one request", "decode", _SEED[1]),
        (f"a prompt of {PREFILL:,} tokens", "prefill", _SEED[2]),
    )
    for title, field, proposed in steps:
        cells = "".join(f"{getattr(volume, field):13,}" for volume in volumes)
        lines.append(f"  {title:38}{cells}{proposed:>13}")
    for title, field in (
        ("name, type and shape beside it, at most", "around"),
        ("largest output without routing", "plain"),
        ("answer without routing", "answer"),
        ("its routing, npy in base64", "npy"),
        ("its routing, compact", "compact"),
    ):
        cells = "".join(f"{getattr(volume, field):13,}" for volume in volumes)
        lines.append(f"  {title:38}{cells}")
    return lines

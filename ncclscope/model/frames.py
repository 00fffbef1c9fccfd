"""Tables of calls and ranks: for pandas, and as HTML for notebooks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ncclscope.model.call import Call
from ncclscope.model.signature import P2P_OPS
from ncclscope.model.sites import frame_of

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = {
    "rank": "Int64",
    "comm": "string",
    "seq": "Int64",
    "op": "string",
    "shape": "object",
    "dtype": "string",
    "bytes": "Int64",
    "time": "datetime64[ns, UTC]",
    "file": "string",
    "line": "Int64",
    "state": "string",
    "p2p": "boolean",
    "key": "string",
}
_MOST_ROWS = 64


def calls_frame(run: Any) -> pd.DataFrame:
    """Return one row for each kept call of a :class:`Run`, by rank and in the order of posting.

    Columns: ``rank``, ``comm`` (label), ``seq``, ``op``, ``shape``, ``dtype``, ``bytes`` (of the
    input), ``time`` (UTC), ``file`` and ``line`` of the call site, ``state``, ``p2p`` and ``key``
    of the communicator. What was not recorded is missing.
    """
    import pandas as pd

    rows = [_row(run, rank, call) for rank in run.ranks for call in rank.kept_calls()]
    frame = pd.DataFrame(rows, columns=list(_COLUMNS))
    frame["time"] = pd.to_datetime(frame["time"], unit="ns", utc=True)
    return frame.astype(_COLUMNS)


def _row(run: Any, rank: Any, call: Call) -> tuple[Any, ...]:
    comm = run.communicators.get(call.comm)
    frame = frame_of(call.full_site or call.site) or {}
    return (
        rank.rank,
        comm.label if comm is not None else call.comm,
        call.seq,
        call.op,
        call.shape,
        call.dtype,
        _bytes(call),
        call.time_ns,
        frame.get("file"),
        frame.get("line"),
        call.state.name.lower(),
        call.op in P2P_OPS,
        call.comm,
    )


def _bytes(call: Call) -> int | None:
    """Return the size of a call's input, from its shape and the width in its type's name."""
    count = call.numel
    if count is None and call.shape is not None:
        count = math.prod(call.shape)
    if count is None or not call.dtype:
        return None
    width = re.search(r"\d+", call.dtype)
    return count * max(1, int(width[0]) // 8) if width else count


def ranks_table(ranks: Sequence[Any]) -> str:
    """Return the ranks as an HTML table: records, and each rank's last call."""
    rows = []
    for rank in ranks[:_MOST_ROWS]:
        last = rank.last_call(transfers=True)
        where = f"{last.op} (call {last.seq})" if last is not None else ""
        site = (last.site or "") if last is not None else ""
        rows.append((rank.rank, rank.host, rank.pid, rank.records, where, site))
    return html_table(("rank", "host", "pid", "calls", "last call", "at"), rows)


def html_table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table; all texts are escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

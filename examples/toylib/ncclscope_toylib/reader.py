"""Reads the logs that toylib writes."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

from ncclscope.errors import DamagedFileError
from ncclscope.model import Call, Communicator, Rank
from ncclscope.model.memory import ListLog

_LARGEST = 64 << 20


class ToylibReader:
    """Reads ``rank-N.toylog``: one line for each call, the operation and the shape."""

    suffix = ".toylog"

    def read(self, path: Path) -> Rank:
        """Return the calls of one rank; the file may come from anywhere, so it is checked."""
        name = re.fullmatch(r"rank-(\d{1,5})\.toylog", path.name)
        if name is None or path.stat().st_size > _LARGEST:
            raise DamagedFileError(f"{path} is not a log of toylib")
        group = path.parent.name
        ranks = tuple(range(len(list(path.parent.glob("rank-*.toylog")))))
        comm = Communicator(key=f"toylib:{group}", label=group, ranks=ranks, backend="toylib")
        calls = []
        for seq, line in enumerate(path.read_text("utf-8", "replace").splitlines(), start=1):
            op, *words = line.split() or [""]
            if not op or not all(re.fullmatch(r"\d{1,15}", word) for word in words):
                raise DamagedFileError(f"{path}: line {seq} is not a call")
            shape = tuple(map(int, words))
            call = Call(op, comm.key, seq, seq - 1, shape=shape, numel=math.prod(shape))
            # What all members of a communicator must agree in.
            calls.append(replace(call, signature=call.sign()))
        rank, log = int(name[1]), ListLog(comm, calls)
        return Rank(rank, len(ranks), logs={comm.key: log}, records=len(calls), source=str(path))

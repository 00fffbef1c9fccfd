"""Compare calls that a probe recorded on some ranks and only NCCL's profiler plugin on others.

The plugin sees neither the reduction of a call nor that torch's barrier is an all_reduce. Where the
sequences of a communicator differ and some calls lack such details, their counterparts are signed
again with what both sides recorded. The ordinary comparison then works on the new signatures.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ncclscope.engine.sequences.align import LOOKAHEAD, find_divergence
from ncclscope.model import Call, DamagedCall, Run
from ncclscope.model.memory import Tail, chained_hashes
from ncclscope.model.signature import BASE
from ncclscope.model.windows import PlacedLog
from ncclscope.wording.notes import Lacks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ncclscope.engine.sequences.align import Divergence
    from ncclscope.model import Communicator
    from ncclscope.model.log import CallLog

_REDUCING_OPS = frozenset({"all_reduce", "reduce", "reduce_scatter", "reduce_scatterv"})
_SEVERAL_LAUNCHES = frozenset({"all_gatherv", "reduce_scatterv", "all_to_all", "gather", "scatter"})
"""Operations that torch carries out as several launches of NCCL's, each recorded by the plugin."""
_BARRIER_DTYPES = ("float32", "uint8")
"""Element types of the one element that torch reduces for a barrier."""
_AS_BYTES = frozenset({"bool", "float8_e4m3fnuz", "float8_e5m2fnuz"})
"""Element types that torch passes to NCCL as uint8."""
_CHUNK = 1 << 13
_MOST_CALLS = 1 << 23
"""Calls of one communicator, of all members together, that are signed again: 64 MB of hashes."""
_MOST_KINDS = 1 << 14
_ASKED = 4
"""Ranks of each group that are searched for calls that lack details."""


class ReducedLog:
    """A log whose calls are signed by what all members recorded, from one call on.

    These calls have no reduction, so that no later step compares it.

    Args:
        log: The recorded calls.
        start: Number of the first call that is signed again; earlier signatures stay.
        signatures: Recorded signatures from there on, `[calls]`.
        renamed: New signature by recorded signature.
        rooted: Whether fingerprints can be compared directly.
    """

    def __init__(
        self,
        log: CallLog,
        start: int,
        signatures: NDArray[np.uint64],
        renamed: Mapping[int, int],
        *,
        rooted: bool,
    ) -> None:
        self.rooted = rooted
        self._log = log
        self._start = start
        self._renamed = renamed
        before = log.fingerprint(start - 1) if start <= log.calls else 0
        self._hashes = chained_hashes(_replaced(signatures, renamed), before)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def fingerprint(self, seq: int) -> int:
        """Return the running hash after ``seq`` calls."""
        if seq < self._start:
            return self._log.fingerprint(seq)
        return int(self._hashes[seq - self._start + 1])

    def signatures(self, start: int, stop: int) -> Sequence[int]:
        """Return the signatures of the calls in ``[start, stop)``."""
        start, stop = max(start, self._log.first), min(stop, self._log.calls + 1)
        middle = min(max(start, self._start), max(start, stop))
        early = [*self._log.signatures(start, middle)] if start < middle else []
        hashes = self._hashes[middle - self._start : max(stop - self._start + 1, 0)]
        late: list[int] = (hashes[1:] - hashes[:-1] * np.uint64(BASE)).tolist()
        return early + late

    def call(self, seq: int) -> Call:
        """Return call number ``seq``."""
        return self._signed(self._log.call(seq))

    def span(self, start: int, stop: int) -> Sequence[Call]:
        """Return the calls in ``[start, stop)``, as far as they are kept."""
        return [self._signed(call) for call in self._log.span(start, stop)]

    def _signed(self, call: Call) -> Call:
        new = self._renamed.get(call.signature) if call.seq >= self._start else None
        return call if new is None else replace(call, signature=new, redop=None)


def reduce_mixed(run: Run) -> Run:
    """Return a run whose mixed communicators are signed by what all their members recorded.

    Communicators whose calls cannot be compared even so are left out, and listed as not recorded.
    """
    changed: dict[str, Mapping[int, CallLog]] = {}
    refused: list[str] = []
    for key, comm in run.communicators.items():
        logs = {rank.rank: rank.logs[key] for rank in run.members(key)}
        found = reduced_logs(comm, logs)
        if found is None:
            refused.append(key)
        elif found is not logs:
            changed[key] = found
    if not changed and not refused:
        return run
    text = "; ".join(Lacks.MIXED.of(run.communicators[key]) for key in refused)
    entry = {"kind": "mixed", "text": text, "comms": refused, "since_ns": None}
    ranks = []
    for rank in run.ranks:
        own = {key: changed[key][rank.rank] for key in changed.keys() & rank.logs.keys()}
        rank = replace(rank, logs={**rank.logs, **own})
        if not rank.logs.keys().isdisjoint(refused):
            unseen = [*(rank.details.get("unseen") or ()), entry]
            rank = replace(
                rank,
                logs={key: log for key, log in rank.logs.items() if key not in refused},
                p2p={key: calls for key, calls in rank.p2p.items() if key not in refused},
                device={key: one for key, one in rank.device.items() if key not in refused},
                details={**rank.details, "unseen": unseen},
            )
        ranks.append(rank)
    comms = {key: comm for key, comm in run.communicators.items() if key not in refused}
    return replace(run, ranks=tuple(ranks), communicators=comms)


def reduced_keys(recorded: Run, judged: Run) -> frozenset[str]:
    """Return the keys of communicators that :func:`reduce_mixed` changed or left out."""
    gone = recorded.communicators.keys() - judged.communicators.keys()
    logs = (item for rank in judged.ranks for item in rank.logs.items())
    return frozenset({*gone, *(key for key, log in logs if isinstance(log, ReducedLog))})


def reduced_logs(comm: Communicator, logs: Mapping[int, CallLog]) -> Mapping[int, CallLog] | None:
    """Return logs that are signed by what all members recorded.

    Args:
        comm: The communicator.
        logs: Each member's calls, by global rank.

    Returns:
        The given logs where nothing has to change; None where they cannot be compared: one call
        of a probe is several of NCCL's, or there are too many calls.
    """
    numbered = all(log.anchored or isinstance(log, PlacedLog) for log in logs.values())
    first = find_divergence(comm, logs) if numbered else None
    if len(logs) < 2 or (numbered and first is None):
        return logs
    start = 1 if first is None else first.seq
    kinds = _Kinds()
    for rank in _asked(logs, first):
        kinds.read(rank, logs[rank], start, start + LOOKAHEAD)
    # Flight Recorder's dumps lack all reductions. NCCL's plugin alone knows a hash.
    if not (kinds.lack_details and (kinds.have_details or comm.hash)):
        return logs
    if sum(log.calls + 1 - max(log.first, start) for log in logs.values()) > _MOST_CALLS:
        return None
    for rank, log in logs.items():
        if not kinds.read(rank, log, start, log.calls + 1):
            return None
    renamed = kinds.renamed()
    if kinds.has_several(renamed):
        return None
    if not renamed:
        return logs
    rooted = (
        first is not None
        and first.exact
        and all(log.rooted and log.first <= start for log in logs.values())
    )
    found = {
        rank: _reduced(log, max(log.first, start), kinds.contents[rank], renamed, rooted=rooted)
        for rank, log in logs.items()
    }
    return _unless_hidden(comm, logs, found, kinds.blind()) if numbered else found


class _Kinds:
    """The calls of several logs, one of each signature.

    Attributes:
        contents: The signatures that were read last of each rank, `[calls]`.
    """

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}
        self._own: dict[int, set[int]] = {}
        self.contents: dict[int, NDArray[np.uint64]] = {}

    def read(self, rank: int, log: CallLog, start: int, stop: int) -> bool:
        """Read the kept calls in ``[start, stop)``; return False if too many kinds differ."""
        start, stop = max(start, log.first), min(stop, log.calls + 1)
        parts = []
        own = self._own.setdefault(rank, set())
        for low in range(start, stop, _CHUNK):
            high = min(low + _CHUNK, stop)
            part = np.array(log.signatures(low, high), np.uint64)
            values, places = np.unique(part, return_index=True)
            parts.append(part)
            self._learn(log, low, high, dict(zip(values.tolist(), places.tolist(), strict=True)))
            own.update(values.tolist())
            if len(self._calls) > _MOST_KINDS:
                return False
        self.contents[rank] = np.concatenate(parts) if parts else np.zeros(0, np.uint64)
        return True

    def _learn(self, log: CallLog, low: int, high: int, places: Mapping[int, int]) -> None:
        new = [place for signature, place in places.items() if signature not in self._calls]
        if len(new) > _CHUNK >> 7:
            calls = log.span(low, high)
            found: Iterable[Call] = [calls[place] for place in new]
        else:
            found = (log.call(low + place) for place in new)
        for call in found:
            if not isinstance(call, DamagedCall):
                self._calls[call.signature] = call

    @property
    def lack_details(self) -> bool:
        """Whether some calls lack a reduction, as those do that only the plugin recorded."""
        return any(map(lacks_reduction, self._calls.values()))

    @property
    def have_details(self) -> bool:
        """Whether some calls have a reduction, as those that a probe recorded."""
        return any(call.redop is not None for call in self._calls.values())

    def renamed(self) -> dict[int, int]:
        """Return the new signature of calls whose counterparts were recorded with fewer details."""
        has_barrier = any(call.op == "barrier" for call in self._calls.values())
        common = {
            signature: _common_signature(call, has_barrier=has_barrier)
            for signature, call in self._calls.items()
        }
        partial = {common[one] for one, call in self._calls.items() if _is_partial(call)}
        return {one: new for one, new in common.items() if new in partial and new != one}

    def has_several(self, renamed: Mapping[int, int]) -> bool:
        """Return whether a rank lacks calls that may be several of NCCL's in its records."""
        several = {one for one, call in self._calls.items() if _is_several(call)}
        for own in self._own.values():
            calls = [self._calls[one] for one in own if one in self._calls]
            if any(lacks_reduction(call) and call.shape is None for call in calls):
                known = {renamed.get(one, one) for one in own}
                if any(renamed.get(one, one) not in known for one in several):
                    return True
        return False

    def blind(self) -> set[int]:
        """Return the ranks that have calls without a reduction."""
        lacking = {one for one, call in self._calls.items() if lacks_reduction(call)}
        return {rank for rank, own in self._own.items() if own & lacking}


def _asked(logs: Mapping[int, CallLog], first: Divergence | None) -> Iterable[int]:
    """Return some ranks of each group at the first difference."""
    if first is None:
        return logs
    groups: list[Collection[int]] = [*first.groups, first.absent]
    return [rank for group in groups for rank in list(group)[:_ASKED]]


def _reduced(
    log: CallLog,
    start: int,
    signatures: NDArray[np.uint64],
    renamed: Mapping[int, int],
    *,
    rooted: bool,
) -> CallLog:
    found = ReducedLog(log, start, signatures, renamed, rooted=rooted)
    if isinstance(log, PlacedLog):  # in memory, with numbers that its class means
        return PlacedLog(log.communicator, found.span(log.first, log.calls + 1), log.first)
    return found


def _replaced(signatures: NDArray[np.uint64], renamed: Mapping[int, int]) -> NDArray[np.uint64]:
    old = np.array(sorted(renamed), np.uint64)
    new = np.array([renamed[one] for one in sorted(renamed)], np.uint64)
    places = np.searchsorted(old, signatures).clip(max=len(old) - 1)
    found: NDArray[np.uint64] = np.where(old[places] == signatures, new[places], signatures)
    return found


def _unless_hidden(
    comm: Communicator,
    logs: Mapping[int, CallLog],
    found: Mapping[int, CallLog],
    blind: Collection[int],
) -> Mapping[int, CallLog]:
    """Return the new logs, unless an earlier difference is in a reduction.

    Then the ranks that recorded it are compared with each other. The others take no part.
    """
    known = {rank: log for rank, log in logs.items() if rank not in blind}
    between = find_divergence(comm, known)
    if between is None:
        return found
    common = find_divergence(comm, found)
    if common is not None and common.seq <= between.seq:
        return found
    return {**{rank: Tail(logs[rank], logs[rank].calls + 1) for rank in blind}, **known}


def _common_signature(call: Call, *, has_barrier: bool) -> int:
    """Return the signature of what both a probe and the plugin record of a call."""
    small = call.op == "all_reduce" and call.numel == 1 and call.dtype in _BARRIER_DTYPES
    if call.op == "barrier" or (has_barrier and small):
        return replace(call, op="all_reduce", dtype=None, redop=None, shape=None, numel=1).sign()
    dtype = "uint8" if call.dtype in _AS_BYTES else call.dtype
    return replace(call, dtype=dtype, redop=None).sign()


def lacks_reduction(call: Call) -> bool:
    """Return whether the reduction of a call was not recorded."""
    return call.op in _REDUCING_OPS and call.redop is None


def _is_partial(call: Call) -> bool:
    """Return whether a call may be one that only the plugin recorded."""
    unshaped = call.shape is None and call.numel is not None and call.redop is None
    return lacks_reduction(call) or unshaped


def _is_several(call: Call) -> bool:
    """Return whether one call of a probe is several of NCCL's, or none: a replay."""
    coalesced = call.shape is None and call.redop is not None and call.numel is not None
    return call.op in _SEVERAL_LAUNCHES or call.replay is not None or coalesced

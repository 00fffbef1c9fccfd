"""Say why a transfer does not end, as far as the records of both ends show it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from ncclscope.engine.transfers.engines import Engines, Joined, KvEngine
from ncclscope.model import Rank, Transfer
from ncclscope.untrusted import printable
from ncclscope.wording.names import plural

HANDSHAKE_SECONDS = 5
"""Timeout of NIXL's handshake in vLLM."""
_MOST_SHOWN = 3


@dataclass(frozen=True)
class Thresholds:
    """Seconds from which on a wait without another reason is reported."""

    alive: float
    ended: float

    def of(self, engine: KvEngine) -> float:
        """Return the threshold for an engine whose processes run, or ran."""
        return self.alive if any(one.alive for one in engine.processes) else self.ended


class Lack(Enum):
    """What a transfer lacks."""

    ANSWER = "its engine asks at another address than the one that answers"
    BLOCKS = "the blocks of a sender whose processes run"
    DELIVERY = "the delivery by a connector"
    ENGINE = "an engine that is not among those read"
    LEASE = "blocks that were not freed before they were read"
    READER = "an engine that reads the blocks"
    RECORD = "a record of the sender"
    ROOM = "free blocks of the receiver"
    SECOND_HALF = "the request at the other engine"
    SENDER = "a sender that runs"
    SUCCESS = "it failed"
    TIME = "a read before the lease ended"
    TURN = "its turn in the queue of the receiver"


@dataclass(frozen=True)
class Reason:
    """Why a transfer does not end.

    Attributes:
        lack: What it lacks.
        missing: What is missing, as the rest of a sentence.
        confidence: ``certain``, ``likely`` or ``ambiguous``.
        role: ``cause``, ``consequence`` or ``latent``.
        hangs: Whether a request hangs.
        at_fault: Processes that the records single out.
        evidence: Facts from the records.
        next: What vLLM itself does about it, and when.
        detail: What divides transfers with the same lack, such as the phase they failed in.
    """

    lack: Lack
    missing: str
    confidence: str = "certain"
    role: str = "cause"
    hangs: bool = True
    at_fault: tuple[Rank, ...] = ()
    evidence: tuple[str, ...] = ()
    next: tuple[str, ...] = field(default=())
    detail: str = ""


def find_reason(engines: Engines, one: Joined, limits: Thresholds) -> Reason | None:
    """Return why a transfer does not end; None for one that ended well, or may still.

    Args:
        engines: All engines in view.
        one: The transfer.
        limits: Thresholds for waits.
    """
    receive, send = one.receive, one.send
    if receive is None:
        return None if send is None else _unclaimed(engines, one, send, limits)
    receiver = engines.by_id[receive.engine]
    sender = engines.by_id.get(receive.peer)
    if receive.phase == "aborted" or _receiver_ended(engines, receiver):
        return None
    if send is not None and send.state == "expired" and _read_after(receive, send):
        return _read_freed(engines, receive, send)
    if receive.state == "completed":
        return None
    if receive.state in ("failed", "expired"):
        return _failed(engines, one, receive, receiver, sender)
    waited = engines.seconds_since(one.begun_ns)
    queued = receive.phase in ("queued", "blocks")
    if queued and waited >= limits.of(receiver):
        return _no_room(engines, one, receive, receiver, waited, limits)
    if sender is not None:
        found = _sender_down(engines, receive, sender, receiver)
        found = found or _freed(receive, send, receiver)
        if found is not None:
            return found
    address = None if sender is None else _wrong_address(engines, receive, sender)
    if address is not None:
        return Reason(
            Lack.ANSWER,
            f"{address}: no answer can come",
            detail=receive.host,
            at_fault=(),
            evidence=(address,),
            next=(_after_failure(receiver, f"after {HANDSHAKE_SECONDS} s without an answer"),),
        )
    if queued:
        return None
    if waited < limits.of(receiver):
        return None
    return _still(receive, send, sender, receiver)


def _receiver_ended(engines: Engines, receiver: KvEngine) -> bool:
    """Return whether the waiting engine has ended while another one runs: nobody waits then."""
    others = [one for one in engines.processes if one not in receiver.processes]
    return bool(receiver.gone()) and any(one.alive for one in others)


def _read_after(receive: Transfer, send: Transfer) -> bool:
    return (
        receive.state == "completed"
        and receive.phase != "cached"
        and (receive.changed_ns > send.changed_ns)
    )


def _read_freed(engines: Engines, receive: Transfer, send: Transfer) -> Reason:
    late = (receive.changed_ns - send.changed_ns) / 1e9
    return Reason(
        Lack.TIME,
        f"its blocks were read {late:.1f} s after the sending engine had freed them, so its "
        f"tokens may be wrong",
        detail=f"{late:.1f}",
        confidence="likely",
        role="latent" if _went_on(engines, receive) else "cause",
        hangs=False,
        evidence=(
            f"the lease ended at {_clock(send.changed_ns)}, and the read at "
            f"{_clock(receive.changed_ns)}",
        ),
        next=("vLLM reports the request as successful; the sending worker logs an error",),
    )


def _went_on(engines: Engines, receive: Transfer) -> bool:
    """Return whether the receiving engine has got the blocks of a later transfer in time."""
    for other in engines.joined:
        end, send = other.receive, other.send
        if (
            end is not None
            and (end.engine, end.state) == (receive.engine, "completed")
            and end.changed_ns > receive.changed_ns
            and (send is None or send.state != "expired")
        ):
            return True
    return False


def _failed(
    engines: Engines,
    one: Joined,
    receive: Transfer,
    receiver: KvEngine,
    sender: KvEngine | None,
) -> Reason | None:
    """Return why a transfer failed, unless the receiving engine has completed one since."""
    since = receive.changed_ns
    if _went_on(engines, receive):
        return None
    why = printable(receive.phase).replace("_", " ")
    evidence = [f"{receiver.name}: {why} at {_clock(since)}"]
    address = None if sender is None else _wrong_address(engines, receive, sender)
    gone = [] if sender is None else sender.gone()
    at_fault: tuple[Rank, ...] = ()
    if gone and sender is not None:
        at_fault = tuple(gone)
        missing = f"it failed, because the sending {sender.name} has ended"
        evidence.append(_ended_text(gone))
    elif address is not None:
        missing = f"it failed ({why}): {address}"
        evidence.append(address)
    elif sender is None and receive.peer:
        missing = (
            f"it failed ({why}): engine {printable(receive.peer)} at {_address(receive)} is not "
            f"among the engines read"
        )
    else:
        missing = f"it failed ({why})"
    return Reason(
        Lack.SUCCESS,
        missing,
        detail=receive.phase,
        confidence="certain" if at_fault or address or sender else "likely",
        hangs=False,
        at_fault=at_fault,
        evidence=tuple(evidence),
        next=(_after_failure(receiver, "at once"),),
    )


def _sender_down(
    engines: Engines, receive: Transfer, sender: KvEngine, receiver: KvEngine
) -> Reason | None:
    """Return a reason where the sending engine cannot answer."""
    if gone := sender.gone():
        text = _ended_text(gone)
        return Reason(
            Lack.SENDER,
            f"the sending {sender.name} has ended",
            at_fault=tuple(gone),
            evidence=(text,),
            next=_waits_for_read(receive, receiver),
        )
    if stopped := sender.stopped():
        listed = _listed(stopped)
        verb = "is" if len(stopped) == 1 else "are"
        return Reason(
            Lack.SENDER,
            f"{listed} of the sending engine {printable(sender.id)} {verb} stopped by a signal",
            at_fault=tuple(stopped),
            evidence=(f"/proc: {listed} {verb} in state T (stopped)",),
            next=_waits_for_read(receive, receiver),
        )
    silent = engines.silent(sender)
    if silent and not engines.silent(receiver):
        newest = max(one.last_seen_ns or 0 for one in silent)
        return Reason(
            Lack.SENDER,
            f"{_listed(silent)} of the sending engine {printable(sender.id)} no longer runs",
            confidence="likely",
            at_fault=tuple(silent),
            evidence=(f"{_listed(silent)}: last heartbeat at {_clock(newest)}",),
            next=_waits_for_read(receive, receiver),
        )
    return None


def _freed(receive: Transfer, send: Transfer | None, receiver: KvEngine) -> Reason | None:
    if send is None or send.state != "expired":
        return None
    return Reason(
        Lack.LEASE,
        "the sending engine freed its blocks before they were read",
        evidence=(f"the lease ended at {_clock(send.changed_ns)}",),
        next=("vLLM reads the freed blocks all the same: the tokens may be wrong",),
    )


def _no_room(
    engines: Engines,
    one: Joined,
    receive: Transfer,
    receiver: KvEngine,
    waited: float,
    limits: Thresholds,
) -> Reason:
    holding = [
        other
        for other in engines.joined
        if other is not one
        and (end := other.receive) is not None
        and (end.engine, end.state) == (receive.engine, "started")
    ]
    stuck = [other for other in holding if find_reason(engines, other, limits) is not None]
    busy = [] if stuck else engines.generating(receiver)
    if busy:
        return Reason(
            Lack.TURN,
            f"its turn in {receiver.name}, which still generates for other requests",
            confidence="likely",
            role="latent",
            hangs=False,
            evidence=(f"{_listed(busy)}: a step with tokens in the last seconds",),
            next=("vLLM keeps it in its queue until blocks are free, without a timeout",),
        )
    held = (
        f"; {plural(len(holding), 'request')} of this engine hold blocks that they wait to fill"
        if holding
        else "; other requests of this engine hold them"
    )
    lease = " The sending engine extends the lease while this one asks for it." if one.send else ""
    return Reason(
        Lack.ROOM,
        f"{receiver.name} has no free KV blocks for it{held}",
        confidence="likely",
        role="consequence" if stuck else "cause",
        evidence=(
            f"the request reached the scheduler {waited:.0f} s ago and was given no blocks"
            + (f"; it needs {receive.blocks}" if receive.blocks else ""),
        ),
        next=(f"vLLM keeps it in its queue until blocks are free, without a timeout.{lease}",),
    )


def _wrong_address(engines: Engines, receive: Transfer, sender: KvEngine) -> str | None:
    """Return how the address that is asked differs from the one at which the engine answers."""
    if not receive.port:
        return None
    known = {
        (end.transfer.host, end.transfer.port)
        for other in engines.joined
        for end in other.sends
        if end.transfer.engine == sender.id and end.transfer.port
    }
    if not known or (receive.host, receive.port) in known:
        return None
    host, port = sorted(known)[0]
    if receive.port in {port for _, port in known}:
        return None  # one host may have several names
    return (
        f"the receiving engine asks {_address(receive)}, but engine {printable(sender.id)} "
        f"answers handshakes at {printable(host)}:{port}"
    )


def _still(
    receive: Transfer, send: Transfer | None, sender: KvEngine | None, receiver: KvEngine
) -> Reason:
    """Return a reason for a wait that no record explains."""
    what = {"handshake": "the answer to its handshake", "read": "the end of its read"}.get(
        receive.phase, "its blocks"
    )
    if not receive.peer:
        store = receiver.connector or "the connector"
        return Reason(Lack.DELIVERY, f"{store} has not delivered {what}", "likely", detail=what)
    if sender is None:
        return Reason(
            Lack.ENGINE,
            f"{what} from engine {printable(receive.peer)}"
            + (f" at {_address(receive)}" if receive.port else "")
            + ", which is not among the engines read",
            "ambiguous",
            next=_waits_for_read(receive, receiver),
            detail=what,
        )
    if send is None:
        return Reason(
            Lack.RECORD,
            f"{what}: the sending {sender.name} has no record of this request",
            "likely",
            at_fault=tuple(sender.processes),
            next=_waits_for_read(receive, receiver),
        )
    return Reason(
        Lack.BLOCKS,
        f"{what} from the sending {sender.name}, whose processes run",
        "likely",
        next=_waits_for_read(receive, receiver),
        detail=what,
    )


def _unclaimed(engines: Engines, one: Joined, send: Transfer, limits: Thresholds) -> Reason | None:
    """Return a reason for blocks that are kept and that no engine in view asks for."""
    sender = engines.by_id[send.engine]
    if send.state == "expired":
        return _expired_unread(engines, send)
    if send.ended or send.phase != "held" or sender.gone():
        return None
    others = [other for other in engines.by_id.values() if other.id != send.engine]
    kept = engines.seconds_since(one.begun_ns)
    if not any(_receives(other) for other in others) or kept < limits.of(sender):
        return None
    names = " and ".join(f"engine {printable(other.id)}" for other in others[:_MOST_SHOWN])
    over = _until(engines, send)
    return Reason(
        Lack.SECOND_HALF,
        f"its second half: {names} never received the request, so that nobody reads the blocks "
        f"that {sender.name} keeps for it",
        "likely",
        evidence=(f"no record of {names} names this request",),
        next=(f"vLLM frees the blocks {over}" if over else "vLLM keeps the blocks",),
    )


def _receives(engine: KvEngine) -> bool:
    role = engine.about.get("role")
    return not engine.gone() and role != "kv_producer"


def _expired_unread(engines: Engines, send: Transfer) -> Reason | None:
    if engines.seconds_since(send.changed_ns) > 60.0:
        return None
    return Reason(
        Lack.READER,
        "no engine read its blocks before they were freed; its client may have gone",
        "likely",
        role="latent",
        hangs=False,
        evidence=(f"the lease ended at {_clock(send.changed_ns)}",),
    )


def _waits_for_read(receive: Transfer, receiver: KvEngine) -> tuple[str, ...]:
    if receive.phase == "handshake":
        return (_after_failure(receiver, f"after {HANDSHAKE_SECONDS} s without an answer"),)
    return (
        "vLLM has no timeout for a read that has begun: the request waits until its client gives "
        "up or the connection breaks",
    )


def _after_failure(receiver: KvEngine, when: str) -> str:
    does = "computes the blocks itself" if receiver.recomputes else "fails the request"
    return f"vLLM {does} {when} (kv_load_failure_policy)"


def _until(engines: Engines, send: Transfer) -> str:
    if not send.deadline_ns:
        return ""
    left = (send.deadline_ns - engines.now_ns) / 1e9
    return f"at {_clock(send.deadline_ns)}, {f'in {left:.0f} s' if left > 0 else 'now'}"


def _ended_text(gone: Sequence[Rank]) -> str:
    how = []
    for one in gone:
        error = one.details.get("ended_with")
        text = "exited normally" if one.exited else "is gone without an exit"
        text = f"ended with {error}" if error else text
        seen = f", last heartbeat at {_clock(one.last_seen_ns)}" if one.last_seen_ns else ""
        how.append(f"pid {one.pid} {text}{seen}")
    return "; ".join(how)


def _listed(processes: Sequence[Rank]) -> str:
    return ", ".join(_process(one) for one in processes[:_MOST_SHOWN])


def _process(one: Rank) -> str:
    what = f"worker rank {one.rank}" if one.rank >= 0 else "the scheduler"
    return f"{what} (pid {one.pid})"


def _address(one: Transfer) -> str:
    return f"{printable(one.host)}:{one.port}"


def _clock(time_ns: int) -> str:
    """Return a time of day in UTC."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(time_ns / 1e9))

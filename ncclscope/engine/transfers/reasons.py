"""Say why a transfer does not end, as far as the records of both ends show it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ncclscope.engine.transfers.engines import Engines, Joined, KvEngine
from ncclscope.model import Rank, Transfer
from ncclscope.untrusted import printable
from ncclscope.wording.names import plural
from ncclscope.wording.transfers import (
    HANDSHAKE_SECONDS,
    Detail,
    Lack,
    Next,
    address_text,
    clock,
    ended_text,
    listed,
    until,
)

_MOST_SHOWN = 3


@dataclass(frozen=True)
class Thresholds:
    """Seconds from which on a wait without another reason is reported."""

    alive: float
    ended: float

    def of(self, engine: KvEngine) -> float:
        """Return the threshold for an engine whose processes run, or ran."""
        return self.alive if any(one.alive for one in engine.processes) else self.ended


@dataclass(frozen=True)
class Reason:
    """Detail a transfer does not end.

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
            Lack.ANSWER.of(address),
            detail=receive.host,
            at_fault=(),
            evidence=(address,),
            next=(_after_failure(receiver, Next.NO_ANSWER.of(HANDSHAKE_SECONDS)),),
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
        Lack.TIME.of(late),
        detail=f"{late:.1f}",
        confidence="likely",
        role="latent" if _went_on(engines, receive) else "cause",
        hangs=False,
        evidence=(Detail.LEASE_AND_READ.of(clock(send.changed_ns), clock(receive.changed_ns)),),
        next=(str(Next.REPORTS_SUCCESS),),
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
    evidence = [f"{receiver.name}: {why} at {clock(since)}"]
    address = None if sender is None else _wrong_address(engines, receive, sender)
    gone = [] if sender is None else sender.gone()
    at_fault: tuple[Rank, ...] = ()
    if gone and sender is not None:
        at_fault = tuple(gone)
        missing = Detail.SENDER_ENDED.of(sender.name)
        evidence.append(ended_text(gone))
    elif address is not None:
        missing = f"{Lack.SUCCESS.of(why)}: {address}"
        evidence.append(address)
    elif sender is None and receive.peer:
        unread = Detail.NOT_AMONG.of(printable(receive.peer), address_text(receive))
        missing = f"{Lack.SUCCESS.of(why)}: {unread}"
    else:
        missing = Lack.SUCCESS.of(why)
    return Reason(
        Lack.SUCCESS,
        missing,
        detail=receive.phase,
        confidence="certain" if at_fault or address or sender else "likely",
        hangs=False,
        at_fault=at_fault,
        evidence=tuple(evidence),
        next=(_after_failure(receiver, str(Next.AT_ONCE)),),
    )


def _sender_down(
    engines: Engines, receive: Transfer, sender: KvEngine, receiver: KvEngine
) -> Reason | None:
    """Return a reason where the sending engine cannot answer."""
    if gone := sender.gone():
        return Reason(
            Lack.SENDER,
            Detail.HAS_ENDED.of(sender.name),
            at_fault=tuple(gone),
            evidence=(ended_text(gone),),
            next=_waits_for_read(receive, receiver),
        )
    engine = printable(sender.id)
    if stopped := sender.stopped():
        state = Detail.ARE_STOPPED.of(stopped)
        return Reason(
            Lack.SENDER,
            Lack.SENDER.of(listed(stopped), engine, state),
            at_fault=tuple(stopped),
            evidence=(Detail.STATE_T.of(listed(stopped), stopped),),
            next=_waits_for_read(receive, receiver),
        )
    silent = engines.silent(sender)
    if silent and not engines.silent(receiver):
        newest = max(one.last_seen_ns or 0 for one in silent)
        return Reason(
            Lack.SENDER,
            Lack.SENDER.of(listed(silent), engine, Detail.NO_LONGER_RUNS),
            confidence="likely",
            at_fault=tuple(silent),
            evidence=(Detail.LAST_HEARTBEAT.of(listed(silent), clock(newest)),),
            next=_waits_for_read(receive, receiver),
        )
    return None


def _freed(receive: Transfer, send: Transfer | None, receiver: KvEngine) -> Reason | None:
    if send is None or send.state != "expired":
        return None
    return Reason(
        Lack.LEASE,
        str(Lack.LEASE),
        evidence=(Detail.LEASE_ENDED.of(clock(send.changed_ns)),),
        next=(str(Next.READS_FREED),),
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
            Lack.TURN.of(receiver.name),
            confidence="likely",
            role="latent",
            hangs=False,
            evidence=(Detail.GENERATES.of(listed(busy)),),
            next=(str(Next.QUEUED),),
        )
    requests = plural(len(holding), "request")
    given_none = Detail.GIVEN_NONE.of(waited)
    return Reason(
        Lack.ROOM,
        Lack.ROOM.of(
            receiver.name, Detail.HOLD_BLOCKS.of(requests) if holding else Detail.HELD_BY_OTHERS
        ),
        confidence="likely",
        role="consequence" if stuck else "cause",
        evidence=(Detail.NEEDS.of(given_none, receive.blocks) if receive.blocks else given_none,),
        next=(Next.EXTENDED.of(Next.QUEUED) if one.send else f"{Next.QUEUED}.",),
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
    answers = f"{printable(host)}:{port}"
    return Detail.OTHER_ADDRESS.of(address_text(receive), printable(sender.id), answers)


def _still(
    receive: Transfer, send: Transfer | None, sender: KvEngine | None, receiver: KvEngine
) -> Reason:
    """Return a reason for a wait that no record explains."""
    known = {"handshake": Detail.HANDSHAKE, "read": Detail.READ}
    what = str(known.get(receive.phase, Detail.ITS_BLOCKS))
    if not receive.peer:
        store = receiver.connector or Detail.CONNECTOR
        return Reason(Lack.DELIVERY, Lack.DELIVERY.of(store, what), "likely", detail=what)
    next = _waits_for_read(receive, receiver)
    if sender is None:
        at = f" at {address_text(receive)}" if receive.port else ""
        missing = Lack.ENGINE.of(what, printable(receive.peer), at)
        return Reason(Lack.ENGINE, missing, "ambiguous", next=next, detail=what)
    if send is None:
        missing, singled = Lack.RECORD.of(what, sender.name), tuple(sender.processes)
        return Reason(Lack.RECORD, missing, "likely", at_fault=singled, next=next)
    missing = Lack.BLOCKS.of(what, sender.name)
    return Reason(Lack.BLOCKS, missing, "likely", next=next, detail=what)


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
    over = until(send.deadline_ns, engines.now_ns)
    return Reason(
        Lack.SECOND_HALF,
        Lack.SECOND_HALF.of(names, sender.name),
        "likely",
        evidence=(Detail.NO_RECORD_NAMES.of(names),),
        next=(Next.FREES.of(over) if over else str(Next.KEEPS),),
    )


def _receives(engine: KvEngine) -> bool:
    role = engine.about.get("role")
    return not engine.gone() and role != "kv_producer"


def _expired_unread(engines: Engines, send: Transfer) -> Reason | None:
    if engines.seconds_since(send.changed_ns) > 60.0:
        return None
    return Reason(
        Lack.READER,
        str(Lack.READER),
        "likely",
        role="latent",
        hangs=False,
        evidence=(Detail.LEASE_ENDED.of(clock(send.changed_ns)),),
    )


def _waits_for_read(receive: Transfer, receiver: KvEngine) -> tuple[str, ...]:
    if receive.phase == "handshake":
        return (_after_failure(receiver, Next.NO_ANSWER.of(HANDSHAKE_SECONDS)),)
    return (str(Next.NO_TIMEOUT),)


def _after_failure(receiver: KvEngine, when: str) -> str:
    return (Next.RECOMPUTES if receiver.recomputes else Next.FAILS).of(when)

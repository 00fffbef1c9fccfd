"""Transfers of KV blocks between engines that do not end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ncclscope.model import Rank, Transfer
from ncclscope.untrusted import printable
from ncclscope.wording.phrase import Phrase

HANDSHAKE_SECONDS = 5
"""Timeout of NIXL's handshake in vLLM."""
_MOST_SHOWN = 3


class Lack(Phrase):
    """What a transfer lacks."""

    ANSWER = "{}: no answer can come"
    BLOCKS = "{} from the sending {}, whose processes run"
    DELIVERY = "{} has not delivered {}"
    ENGINE = "{} from engine {}{}, which is not among the engines read"
    LEASE = "the sending engine freed its blocks before they were read"
    READER = "no engine read its blocks before they were freed; its client may have gone"
    RECORD = "{}: the sending {} has no record of this request"
    ROOM = "{} has no free KV blocks for it; {}"
    SECOND_HALF = (
        "its second half: {} never received the request, so that nobody reads the blocks that {} "
        "keeps for it"
    )
    SENDER = "{} of the sending engine {} {}"
    SUCCESS = "it failed ({})"
    TIME = (
        "its blocks were read {:.1f} s after the sending engine had freed them, so its tokens may "
        "be wrong"
    )
    TURN = "its turn in {}, which still generates for other requests"


class Detail(Phrase):
    """Details of what a transfer lacks, and lines of evidence."""

    CONNECTOR = "the connector"
    HANDSHAKE = "the answer to its handshake"
    READ = "the end of its read"
    ITS_BLOCKS = "its blocks"
    HOLD_BLOCKS = "{} of this engine hold blocks that they wait to fill"
    HELD_BY_OTHERS = "other requests of this engine hold them"
    SENDER_ENDED = "it failed, because the sending {} has ended"
    HAS_ENDED = "the sending {} has ended"
    NO_LONGER_RUNS = "no longer runs"
    ARE_STOPPED = "{:are} stopped by a signal"
    NOT_AMONG = "engine {} at {} is not among the engines read"
    LEASE_AND_READ = "the lease ended at {}, and the read at {}"
    LEASE_ENDED = "the lease ended at {}"
    STATE_T = "/proc: {} {:are} in state T (stopped)"
    LAST_HEARTBEAT = "{}: last heartbeat at {}"
    GENERATES = "{}: a step with tokens in the last seconds"
    GIVEN_NONE = "the request reached the scheduler {:.0f} s ago and was given no blocks"
    NEEDS = "{}; it needs {}"
    NO_RECORD_NAMES = "no record of {} names this request"
    OTHER_ADDRESS = "the receiving engine asks {}, but engine {} answers handshakes at {}"


class Next(Phrase):
    """What vLLM does about a transfer, and when."""

    REPORTS_SUCCESS = "vLLM reports the request as successful; the sending worker logs an error"
    READS_FREED = "vLLM reads the freed blocks all the same: the tokens may be wrong"
    QUEUED = "vLLM keeps it in its queue until blocks are free, without a timeout"
    EXTENDED = "{}. The sending engine extends the lease while this one asks for it."
    FREES = "vLLM frees the blocks {}"
    KEEPS = "vLLM keeps the blocks"
    NO_TIMEOUT = (
        "vLLM has no timeout for a read that has begun: the request waits until its client gives "
        "up or the connection breaks"
    )
    RECOMPUTES = "vLLM computes the blocks itself {} (kv_load_failure_policy)"
    FAILS = "vLLM fails the request {} (kv_load_failure_policy)"
    AT_ONCE = "at once"
    NO_ANSWER = "after {} s without an answer"


def ended_text(gone: Sequence[Rank]) -> str:
    """Say how processes ended, and when they were seen last."""
    how = []
    for one in gone:
        error = one.details.get("ended_with")
        text = "exited normally" if one.exited else "is gone without an exit"
        text = f"ended with {error}" if error else text
        seen = f", last heartbeat at {clock(one.last_seen_ns)}" if one.last_seen_ns else ""
        how.append(f"pid {one.pid} {text}{seen}")
    return "; ".join(how)


def listed(processes: Sequence[Rank]) -> str:
    """Return ``worker rank 3 (pid 12), the scheduler (pid 11)``."""
    names = [f"worker rank {one.rank}" if one.rank >= 0 else "the scheduler" for one in processes]
    return ", ".join(
        f"{name} (pid {one.pid})" for name, one in zip(names[:_MOST_SHOWN], processes, strict=False)
    )


def until(deadline_ns: int, now_ns: int) -> str:
    """Return ``at 12:00:03 UTC, in 5 s``; empty without a deadline."""
    if not deadline_ns:
        return ""
    left = (deadline_ns - now_ns) / 1e9
    return f"at {clock(deadline_ns)}, {f'in {left:.0f} s' if left > 0 else 'now'}"


def address_text(one: Transfer) -> str:
    """Return the address that the receiving engine asks."""
    return f"{printable(one.host)}:{one.port}"


def clock(time_ns: int) -> str:
    """Return a time of day in UTC."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(time_ns / 1e9))

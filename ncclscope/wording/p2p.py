"""Sends and receives without another side."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.model import Call, Communicator, Run
from ncclscope.wording.names import comm_text, rank_text, sentence
from ncclscope.wording.phrase import Phrase


class Stuck(Phrase):
    """Why a transfer is stuck, with the numbers of ranks."""

    TIMEOUT_ENDED = "its timeout ended rank {}"
    ENDED_WITHOUT = "rank {} ended normally without its half"
    GAVE_UP = "rank {} did not complete it within its timeout"
    QUIET = "{} have made no call for {:.0f} s"
    DUMPED_AT_TIMEOUT = "the dumps were written when a call timed out"
    ALL_QUIET = "all dumps were written long after the last call"
    WAITS_FOR_IT = "rank {} waits for rank {} itself, in another call"
    OTHERS_COMPLETED = "rank {} has completed all transfers before it that its ring kept"


class Half(Phrase):
    """That one half of a transfer is missing, and whose."""

    NO_SERVER = ": a server without requests looks the same"
    NEWEST = "rank {}: {}, its newest call"
    LAST_CALL = "the last call of rank {} is {} on {}, {}"
    NO_OTHER_SIDE = (
        "{who:^} {waiting:wait} in {one.call}{any} on {one.comm}{site}, and {peer} "
        "{one.peers:have} posted no {lack} for it."
    )
    FROM_ANY = " from any rank"
    SEVERAL_WAIT = "{} diverged: several ranks wait for it, and it waits in no transfer itself"
    COUNTS = "{} to rank {} from all ranks, {} there"
    WAITS_IN_NONE = "it waits in no transfer itself"
    DIFFERS = (
        "it has posted up to transfer {} with its neighbours, {} than all others, which have "
        "reached {}"
    )
    SHORT_OF = (
        "it has posted {} of them, and all others have reached transfer {} with their neighbours"
    )
    SISTERS = (
        "{sisters}, which {sisters:do} the same with rank {peer} at the same lines, posted "
        "transfer {number} there"
    )


_DOES = {"send": "sends to", "recv": "waits to receive from"}
_LACKS = {"send": "receive", "recv": "send"}


class Unpaired(Phrase):
    """What two ranks sent and received, where that does not match or one half is missing."""

    BY_SIZE = (
        "tags pair transfers here, and are not recorded; no send and receive of one size are left"
    )
    OPEN_PAIR = "the records do not show which of the two is wrong"
    PENDING = "rank {rank}: {call}, {call.state.word}{site}"
    AFTER = (
        "rank {rank}: {call}, {call.state.word}{site}; {before} before it between the two; {proof}"
    )
    SKIPPED = "{who:^} skipped {expected}, in step {step}, and went on with {posted}."
    LEFT_ORDER = (
        "{who:^} posted {posted} as call {number} of step {step}, where each step before had "
        "{expected}."
    )
    ENDED_STEP = (
        "{who:^} waits for work after step {step}, and has not posted its call {number}; each step "
        "before had {expected} there."
    )
    AFTER_STEP = "{0} {0:wait} for work after step {1}, in which {0:they} posted {2}"
    IN_STEP = "rank {}, call {} of step {}: {}{}"
    IN_STEPS_BEFORE = "in each of the 3 steps before: {}{}"
    OTHERS_KEPT = (
        "rank {} diverged: all other ranks posted their calls in the same order as in the 3 steps "
        "before"
    )
    CYCLE = "{:^} wait for each other in a cycle of sends and receives. {}"
    MIXED_CYCLE = "{:^} wait for each other in a cycle of collectives, sends and receives. {}"
    WAITS_FOR = "rank {} waits for rank {}, in {} on {}"
    HALF = (
        "rank {rank} {does} it, transfer {number} of that kind between them, and it has posted no "
        "{lacks} for it"
    )
    LATE = "{:^} is in no transfer, and its neighbours wait for it on {}: {}."
    LATE_FOR_ALL = (
        "{who:^} is in no call, and its peers wait for it on {comm}: {halves}; {joins} "
        "{joins:wait} for it in a collective."
    )
    UNLIKE = "The transfers of {} do not match its neighbours' on {}: {}."
    IS_LATE = "rank {} is late: {}"
    DIVERGED = "rank {} diverged: {}"
    MISSING = (
        "{who:^} posted {call} on {comm}, transfer {number} from rank {sender} to rank {receiver}, "
        "and {whom} has posted no {lacks} for it."
    )
    COUNTS = (
        "{sends} from rank {sender} to rank {receiver}, {receives} there; {paired} of them form "
        "pairs"
    )
    LAST = (
        "the last collective of rank {rank} is #{call.seq} on {comm}, {call}, "
        "{call.state.word}{site}"
    )
    UNSEEN = "rank {} waits in a transfer with {}, of which records are missing or damaged"
    NOT_RECEIVED = "rank {} has sent it {}, and it has posted {} from there"
    NEVER_RECEIVED = "it has never received from rank {}, and lacks a receive elsewhere"
    NEW = "it never had such a transfer with rank {} before, and rank {} waits for just this one"
    OUT_OF_TURN = (
        "ranks {0} and {1} took turns each time, rank {0} has now posted two in a row, and rank "
        "{2} waits for just this one"
    )
    ONLY_SHARED = "it is the only rank that all transfers without a match share"
    UNFIT = (
        "{sender:^} posted {sent} on {comm}, and {receiver} {received}: transfer {number} between "
        "them does not match."
    )
    MATCH = "transfers 1 to {} from rank {} to rank {} match"
    FIRST = "it is the first transfer from rank {} to rank {}"


def half_missing(code: Unpaired, call: Call, **slots: object) -> str:
    """Return a phrase on a half that is missing, with what the other half does."""
    return code.of(call=call, does=_DOES[call.op], lacks=_LACKS[call.op], **slots)


def misdirected(
    run: Run, diverging: int, comm: Communicator, halves: Sequence[tuple[int, int, Call]]
) -> str:
    """Say which transfers lack their other half because of one rank."""
    texts = []
    for place, (rank, peer, call) in enumerate(halves):
        who, whom = (
            rank_text(run, one) if place == 0 and one == diverging else f"rank {one}"
            for one in (rank, peer)
        )
        texts.append(f"{who} {_DOES[call.op]} {whom}, which has posted no {_LACKS[call.op]} for it")
    return f"{sentence('; '.join(texts))} (on {comm_text(comm)})."

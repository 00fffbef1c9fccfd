"""Sentences about calls of one number with different parameters."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.model import Call, Communicator, Run
from ncclscope.wording.differences import Contrast, Differ, subject
from ncclscope.wording.names import (
    call_text,
    comm_text,
    plural,
    rank_text,
    ranks_text,
    replay_text,
    sentence,
    shape_text,
    site_text,
    sizes_text,
    verb,
    who_text,
)

ONE_CALL = (
    "which kind it is: the two calls come from different lines, so that one side may have skipped "
    "or repeated a call"
)
_OPEN_ORDER = "the records do not show which order diverged"
OPEN_SPLITS = "the records do not show which side is wrong"


def call_with(call: Call, parameter: str) -> str:
    """Return a call's text, with the parameter in question where that is omitted."""
    if parameter == "split" and call.sizes is not None:
        return f"{call_text(call)} with sizes {sizes_text(call.sizes)}"
    if parameter == "captured":
        captured = "captured" if call.captured else "not captured"
        return f"{call_text(call)}, {replay_text(call) or captured}"
    return call_text(call)


def mismatch(run: Run, one: Contrast, parameter: str, lines: tuple[str, str] | None) -> str:
    """Say who posted a call with another parameter than the peers."""
    where, peers = f"call {one.seq} on {comm_text(one.comm)}", ranks_text(one.peers)
    own, theirs = call_with(one.odd_call, parameter), call_with(one.peer_call, parameter)
    sites = one.odd_call.site, one.peer_call.site
    if not one.decided and one.noticed is not None:
        return (
            f"{sentence(peers)} came to {where} from different lines, {sites[0]} and {sites[1]}, "
            f"and posted different calls from call {one.noticed} on; {Differ.OPEN}."
        )
    if one.differing_calls is not None:
        own, theirs = (call_with(call, parameter) for call in one.differing_calls)
        return (
            f"{subject(run, one)} came to {where} from {sites[0]}, {peers} from {sites[1]}: "
            f"another branch, in which call {one.noticed} is {own}, and {theirs} on {peers}."
        )
    if not one.odd:
        return f"At {where} {peers} posted different calls, {own} and {theirs}; {Differ.OPEN}."
    if lines is not None:
        own, theirs = f"{own} at {lines[0]}", f"{theirs} at {lines[1]}"
        peers += ", from another line,"
    return f"{subject(run, one)} posted {own} as {where}; {peers} posted {theirs}."


def opposite_order(run: Run, one: Contrast, parameter: str) -> str:
    """Say who posted two calls, or blocks of calls, in the opposite order."""
    own, theirs = call_with(one.odd_call, parameter), call_with(one.peer_call, parameter)
    both, peers = f"{theirs} and {own}", ranks_text(one.peers)
    if one.order != (1, 1):
        both = f"the calls from {theirs} on and those from {own} on"
    where = f"{comm_text(one.comm)}, from call {one.seq} on"
    if not one.odd:
        return f"{sentence(peers)} posted {both} in opposite orders on {where}; {_OPEN_ORDER}."
    return (
        f"{subject(run, one)} posted {both} in the opposite order on {where}: {own} comes first "
        f"there, {theirs} on {peers}."
    )


def blocks(one: Contrast, matched: int) -> str:
    """Say which two blocks of calls are in opposite order, and how many calls agree after them."""
    theirs, own = one.order or (0, 0)
    after = "no calls follow"
    if matched:
        after = f"{plural(matched, 'call')} after that {verb(range(matched), 'agree')}"
    return (
        f"#{one.seq} to #{one.seq + theirs + own - 1}: the same {plural(theirs + own, 'call')}, "
        f"but the first {theirs} of one side are the last {theirs} of the other; {after}"
    )


def overwritten(run: Run, one: Contrast) -> str:
    """Say that the call in which a rank diverged is not kept."""
    return (
        f"{subject(run, one)} left the common sequence of {comm_text(one.comm)} at call {one.seq} "
        f"or before; the call itself has been overwritten."
    )


def captured(run: Run, one: Contrast) -> str:
    """Say who captured, replayed or ran a call that the peers posted in another way."""
    odd, peer = one.odd_call, one.peer_call
    did, instead = _way(odd, ""), _way(peer, " it")
    if odd.replay is None and peer.replay is None:
        did, instead = "captured", "ran it eagerly"
        if not odd.captured:
            did, instead = "eagerly ran", "captured it into a CUDA graph"
    return (
        f"{subject(run, one)} {did} call {one.seq} on {comm_text(one.comm)}, {call_text(odd)}"
        f"{_which(odd)}; {ranks_text(one.peers)} {instead}{_which(peer)}."
    )


def _way(call: Call, what: str) -> str:
    if call.replay is not None:
        return f"replayed{what}"
    return f"captured{what}" if call.captured else f"posted{what} eagerly"


def _which(call: Call) -> str:
    return "" if call.replay is None else f" ({replay_text(call)})"


def other_graph(run: Run, one: Contrast, seq: int, graphs: Sequence[tuple[int, int]]) -> str:
    """Say who replayed another graph than the peers; of each, give its number and calls."""
    where, peers = f"call {seq} on {comm_text(one.comm)}", ranks_text(one.peers)
    own, theirs = (f"graph {number}, of {plural(calls, 'call')}" for number, calls in graphs)
    if not one.odd:
        differ = f"{peers} replayed different CUDA graphs, {own}, and {theirs}"
        return f"At {where} {differ}; {Differ.OPEN}."
    return (
        f"{subject(run, one)} replayed another CUDA graph than its peers as {where} and those "
        f"after it: {own}; {peers} replayed {theirs}."
    )


def known_graphs(one: Contrast, odd_has: int | None, peer_has: int | None) -> tuple[str, ...]:
    """Say which number the graph of one side has on the other, where it has it."""
    own, theirs = "one side", "the other side"
    if one.odd:
        own, theirs = ranks_text(one.odd), ranks_text(one.peers)
    return tuple(
        f"the graph that {there} replayed is graph {number} on {here}"
        for number, here, there in ((odd_has, own, theirs), (peer_has, theirs, own))
        if number is not None
    )


def unfit_output(run: Run, ranks: Sequence[int], comm: Communicator, call: Call, due: int) -> str:
    """Say who passed an output that does not fit its input, which needs `due` elements."""
    return (
        f"{sentence(who_text(run, ranks))} posted {call_text(call)} as call {call.seq} on "
        f"{comm_text(comm)} with an output of {shape_text(call.out_shape)}; with "
        f"{len(comm.ranks)} members it needs {due} elements."
    )


def passed_output(ranks: Sequence[int], call: Call) -> str:
    """Say which output ranks passed to a call."""
    return (
        f"{ranks_text(ranks)} {verb(ranks, 'pass')} {call_text(call)} with an output of "
        f"{shape_text(call.out_shape)} as #{call.seq}{site_text(call)}"
    )


def unlike_entry(run: Run, rank: int, comm: Communicator, call: Call, rows: int, entry: int) -> str:
    """Say that the rows of a rank differ from its own entry of the sizes."""
    what = "passed" if call.op == "all_gatherv" else "took"
    return (
        f"{sentence(rank_text(run, rank))} {what} {rows} rows in call {call.seq} on "
        f"{comm_text(comm)}, {call_text(call)}, but its own entry of the sizes is {entry}."
    )


def posted_sizes(rank: int, call: Call) -> str:
    """Say with which sizes a rank posted a call."""
    sizes = ",".join(map(str, call.sizes or ()))
    return f"rank {rank} posted {call_text(call)} with sizes {sizes}{site_text(call)}"


def unfit_edge(sender: int, receiver: int, sent: int, due: int) -> str:
    """Say how many rows a rank sends to another one, and how many that one expects."""
    return f"rank {sender} sends {sent} to rank {receiver}, which expects {due}"


def unfit_splits(
    run: Run, ranks: Sequence[int], comm: Communicator, seq: int, edge: str, *, adds_up: bool
) -> str:
    """Say which one rank split its tensors otherwise than its peers, or which ranks may have."""
    where = f"call {seq} on {comm_text(comm)}, all_to_all"
    if len(ranks) > 1:
        return f"In {where}, the splits of {ranks_text(sorted(ranks))} do not match: {edge}."
    how = "differently than all its peers expect"
    if not adds_up:
        how = "into more or fewer rows than they have"
    return f"{sentence(rank_text(run, ranks[0]))} split its tensors in {where} {how}: {edge}."

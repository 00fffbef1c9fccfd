"""Sentences about calls of one number with different parameters."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.model import Call, Run
from ncclscope.wording.differences import Contrast, Differ, subject
from ncclscope.wording.names import (
    call_text,
    comm_text,
    plural,
    ranks_text,
    replay_text,
    sentence,
    sizes_text,
)
from ncclscope.wording.phrase import Phrase

_OPEN_ORDER = "the records do not show which order diverged"


class Unlike(Phrase):
    """What is known of calls of one number with different parameters."""

    ONE_CALL = (
        "which kind it is: the two calls come from different lines, so that one side may have "
        "skipped or repeated a call"
    )
    BLOCKS = (
        "#{first} to #{last}: the same {calls}, but the first {theirs} of one side are the last "
        "{theirs} of the other; {after}"
    )
    NO_CALLS = "no calls follow"
    AGREE = "{} after that {:agree}"
    OVERWRITTEN = (
        "{who:^} left the common sequence of {one.comm} at call {one.seq} or before; the call "
        "itself has been overwritten."
    )
    SAME_GRAPH = "the graph that {} replayed is graph {} on {}"
    ONE_SIDE = "one side"
    OTHER_SIDE = "the other side"
    OUTPUT = (
        "{who:^} posted {call} as call {call.seq} on {comm} with an output of {shape}; with {size} "
        "members it needs {due} elements."
    )
    PASSED = "{ranks} {ranks:pass} {call} with an output of {shape} as #{call.seq}{site}"
    ROWS = (
        "{who:^} {did} {rows} rows in call {call.seq} on {comm}, {call}, but its own entry of the "
        "sizes is {entry}."
    )
    SIZES = "rank {} posted {} with sizes {}{}"
    EDGE = "rank {} sends {} to rank {}, which expects {}"
    SPLITS = "In call {seq} on {comm}, all_to_all, the splits of {ranks} do not match: {edge}."
    OWN_ROWS = (
        "{who:^} split its tensors in call {seq} on {comm}, all_to_all into more or fewer rows "
        "than they have: {edge}."
    )
    OWN_SPLITS = (
        "{who:^} split its tensors in call {seq} on {comm}, all_to_all differently than all its "
        "peers expect: {edge}."
    )
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


def different_graphs(run: Run, one: Contrast, seq: int, graphs: Sequence[tuple[int, int]]) -> str:
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

"""Hold the causes against the wait graph: they have to account for all that waits, and no more.

Analyzers see a part of the job each: one communicator, transfers or endings. Here the causes become
those whose repair releases every waiting rank, and the others follow from them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from ncclscope.engine.case import Case
from ncclscope.engine.precedence import as_consequence
from ncclscope.engine.processes.outside import past_outside
from ncclscope.engine.repairs.graph import WaitGraph
from ncclscope.engine.repairs.repair import (
    MOST_RANKS,
    by_parts,
    decided_by_rounds,
    prove,
    were_answered,
    with_unmade_groups,
)
from ncclscope.engine.sequences.streams import Repeated, repeated
from ncclscope.engine.table import peer_of
from ncclscope.engine.waits.graph import wait_graph
from ncclscope.engine.waits.waits import ended_by_peers
from ncclscope.model import Blame, Call, Finding, State
from ncclscope.model.signature import P2P_OPS
from ncclscope.wording.doubts import Doubt
from ncclscope.wording.names import plural, rank_text
from ncclscope.wording.waits import Place, Wait

_IN_GRAPH = frozenset({"not_joined", "dead_rank", "stalled", "extra_call", "p2p_mismatch"})
"""Kinds of findings on waits that the graph has. It has none for keys of a store, for instance."""

_SHOWN = 4
_LATE = ("not_joined", "dead_rank")


def account(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings whose causes release all that waits, if one set of ranks alone does.

    Args:
        case: The case.
        findings: The findings.
    """
    findings = past_outside(case, findings)
    causes = [one for one in findings if one.role == "cause"]
    differ = causes and not any(map(_is_wait, causes))
    if any(one.comm is None for one in causes) or (differ and len(case.run.ranks) > MOST_RANKS):
        return list(findings)
    graph = wait_graph(case)
    if not causes:
        found = decided_by_rounds(case, graph, [*_gone(case, graph), *findings])
    else:
        found = [
            one for part, own in by_parts(graph, findings) for one in _accounted_in(case, part, own)
        ]
    proved = _proved(case, graph, [_with_unseen(case, graph, one) for one in found])
    return _beside_others(_joined(case, with_unmade_groups(case, proved)))


def _accounted_in(case: Case, graph: WaitGraph, findings: Sequence[Finding]) -> Sequence[Finding]:
    """Return the findings on ranks that waits join, with causes that account for what waits."""
    causes = [one for one in findings if one.role == "cause"]
    found = list(findings)
    if any(map(_is_wait, causes)):
        found = _accounted(case, graph, _without_redundant(graph, findings))
        found = [_unless_others_closed(case, one) for one in found]
    return decided_by_rounds(case, graph, found)


def _with_unseen(case: Case, graph: WaitGraph, finding: Finding) -> Finding:
    """Return a finding with the ranks that account for its waits by what is not seen of them.

    Those without a record for which its candidates wait, directly or behind others. And the members
    of a call with a root that all have posted and in which such a rank waits: dumps show no roots.
    """
    about = _about(finding)
    if finding.role != "cause" or not _is_wait(finding):
        return finding
    reached = graph.reached(about)
    heads = (case.waits.heads.get(number) for number in reached & graph.obscure)
    rooted = [call for call in heads if call and call.lacks_root]
    met = frozenset[int]().union(*(case.run.communicators[call.comm].ranks for call in rooted))
    is_open = not finding.diverging_ranks and about & graph.waiting.keys() <= graph.released(())
    beyond = met | (reached & graph.unseen) if is_open else met
    if beyond <= about:
        return finding
    return replace(
        finding.undecided(sorted(about | beyond)),
        inferred=(*finding.inferred, Doubt.NOT_SEEN.of(sorted(beyond - about))),
    )


def _beside_others(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings that are at most likely beside another cause.

    A rank that is late may wait for a rank of that one, or a candidate, in what is not known to
    have completed. And ranks whose own calls differ are no part of a majority.
    """
    causes = [one for one in findings if one.role == "cause"]
    found = []
    for one in findings:
        rest = [each for each in causes if each is not one]
        others = _named(rest).difference(one.diverging_ranks)
        either = frozenset(rank for each in rest for rank in each.candidate_ranks)
        if one.role == "cause" and one.confidence == "certain" and (others or either):
            differ = _named([each for each in rest if not (each.survived or each.kind in _LATE)])
            strayed = [each for each in rest if _is_of_same_call(one, each)]
            if one.kind == "not_joined":
                one = one.doubted(Doubt.MAY_WAIT.of(others | either))
            elif one.kind == "dead_rank" and strayed:
                one = one.doubted(Doubt.NOT_THEIR_CALL.of(_named(strayed)))
            elif one.kind != "dead_rank" and _lacks_majority(one, differ):
                one = one.doubted(Doubt.DIFFER_THEMSELVES.of(differ))
        found.append(one)
    return found


def _is_of_same_call(one: Finding, other: Finding) -> bool:
    """Return whether ranks wait in a call that, going by another cause, they should not post."""
    if None in (one.comm, one.seq) or other.kind not in ("comm_swap", "extra_call"):
        return False
    return (one.comm, one.seq) == (other.comm, other.seq)


def _lacks_majority(finding: Finding, differ: frozenset[int]) -> bool:
    """Return whether its peers are no majority without the ranks that differ themselves."""
    members = frozenset(() if finding.comm is None else finding.comm.ranks)
    peers = members.difference(finding.diverging_ranks)
    return bool(peers & differ) and 2 * len(peers - differ) <= len(members)


def _joined(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with causes on sister groups as one, if the same lines differ there.

    It is not certain where one of the ranks may wait for another one in a transfer.
    """
    found: list[Finding] = []
    for one in findings:
        place = next((n for n, other in enumerate(found) if _is_same(one, other)), None)
        if place is None:
            found.append(one)
            continue
        first = found[place]
        assert one.comm is not None
        found[place] = replace(
            first.with_note(Doubt.DID_THE_SAME.of(one.diverging_ranks, one.comm)),
            blame=Blame.on(
                sorted({*first.diverging_ranks, *one.diverging_ranks}), first.confidence
            ),
            evidence=(*first.evidence, *one.evidence),
        )
        if _exchange(case, first.diverging_ranks, one.diverging_ranks):
            doubt = Doubt.HELD_UP.of(first.diverging_ranks, one.diverging_ranks)
            found[place] = found[place].doubted(doubt)
    return found


def _exchange(case: Case, ranks: Sequence[int], others: Sequence[int]) -> bool:
    """Return whether the last transfer of a rank is with one of others, and may be pending."""
    return any(
        call.state is not State.COMPLETED
        and peer_of(call, case.run.communicators[call.comm]) in others
        for rank in ranks
        if rank in case.run.by_rank
        for call in case.run.by_rank[rank].last_transfers().values()
    )


def _is_same(one: Finding, other: Finding) -> bool:
    """Return whether ranks did the same on different communicators, by the lines of their calls."""
    if not (one.role == other.role == "cause") or None in (one.comm, other.comm):
        return False
    if one.comm == other.comm or not one.diverging_ranks or not other.diverging_ranks:
        return False
    if one.odd is None or one.odd.site is None or one.peers is None:
        return False
    return _likeness(one) == _likeness(other)


def _likeness(one: Finding) -> object:
    calls = tuple((call.sign(), call.site) for call in (one.odd, one.peers) if call)
    return one.kind, one.confidence, one.extent, calls


def _gone(case: Case, graph: WaitGraph) -> list[Finding]:
    """Return findings about the ranks that have ended, if all others wait for them."""
    waiting = [case.run.by_rank[number] for number in graph.waiting]
    still = [rank.rank for rank in waiting if not ended_by_peers(rank)]
    ends = graph.awaited - graph.waiting.keys()
    if not ends or ends != graph.gone | graph.abnormal:
        return []
    if not graph.explains(ends) or (still and case.longest_common_quiet(still) is None):
        return []
    return _held_up_by(case, graph, ends)


def _without_redundant(graph: WaitGraph, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with waits as consequences where the calls that differ account for all."""
    ranks = _named([one for one in findings if not _is_wait(one)])
    if not ranks or graph.released(ranks) != graph.waiting.keys():
        return list(findings)
    kept = graph.abnormal - ranks
    return [
        as_consequence(one) if _is_wait(one) and not kept.intersection(one.diverging_ranks) else one
        for one in findings
    ]


def _accounted(case: Case, graph: WaitGraph, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with those as causes that name the ranks of the repair, each rank once."""
    if _is_hidden(case, graph):
        return _by_unseen(case, graph, findings)
    alone = _only_repair(case, graph)
    repair = _reduced(graph, _named(findings)) if alone is None else alone
    explained = bool(repair and graph.waits) and graph.released(repair) == graph.waiting.keys()
    if explained:
        findings = _promoted(findings, repair)
    elif len(graph.cheapest) > 1:
        findings = _with_all_rivals(graph, findings)
    open_ranks = repair - _named(findings)
    late = graph.sinks & _named([one for one in findings if one.kind in _LATE])
    found = []
    for one in findings:
        if one.role != "cause" or not _is_wait(one):
            found.append(one)
        elif one.diverging_ranks:
            # A rank that waits for nothing is late for all of its calls, its transfers as well.
            is_late = one.kind == "p2p_mismatch" and late.issuperset(one.diverging_ranks)
            found.append(as_consequence(one) if is_late else _among(one, repair))
        elif alone is not None and open_ranks:
            found.append(_settled(graph, one, alone))
        else:
            follows = explained or _is_behind(case, graph, one)
            found.append(as_consequence(one) if follows else one)
    found = _unless_too_few(graph, found)
    open_ranks = repair - _named(found)
    if alone is not None and open_ranks <= graph.awaited:
        # Who has ended will not come; others may, unless all have waited for long.
        absent = [n for n in open_ranks if case.stalled or _has_ended(case, graph, n)]
        found = [*_held_up_by(case, graph, absent), *found]
    either = tuple(sorted(frozenset().union(*graph.cheapest))) if len(graph.cheapest) > 1 else ()
    if not any(one.role == "cause" for one in found) and graph.waiting.keys() & {*either}:
        found = [_either(case, graph, either), *found]
    if explained:
        found = [_by_stream(case, graph, one) if one.role == "cause" else one for one in found]
    return [_unless_rivals(case, graph, one) if one.role == "cause" else one for one in found]


def _unless_too_few(graph: WaitGraph, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings as open among the ranks at all ends of chains, if they name few of these.

    Only where these explain the hang, as do others: which ranks diverged is not known. Nor of one
    that has ended, whatever others do.
    """
    named, ends = _named(findings), graph.sinks - graph.waiting.keys()
    is_open = len(graph.cheapest) > 1 and ends in graph.cheapest
    if not is_open or not named or not named < ends or named & (graph.gone | graph.abnormal):
        return list(findings)
    found = []
    for one in findings:
        if one.role == "cause":
            one = one.undecided(sorted(ends)) if one.diverging_ranks else as_consequence(one)
        found.append(one)
    return found


def _has_ended(case: Case, graph: WaitGraph, number: int) -> bool:
    rank = case.run.by_rank.get(number)
    return rank is None or number in graph.gone or case.how_it_ended(rank) is not None


def _by_stream(case: Case, graph: WaitGraph, finding: Finding) -> Finding:
    """Return a finding on a rank that is late for its peers' calls as one on what it did instead.

    It has ended, or it waits in a call which it posted once more than its peers.
    """
    if not _is_wait(finding) or len(finding.diverging_ranks) != 1:
        return finding
    (number,) = finding.diverging_ranks
    if number in graph.sinks and finding.kind == "p2p_mismatch":
        ended = [rank for rank in case.run.ranks if case.how_it_ended(rank)]
        gone = [rank.rank for rank in ended if not ended_by_peers(rank)]
        return _at_an_end(case, graph, number) if gone == [number] else finding
    waits = graph.waiting.get(number, ())
    call = waits[0].call if len(waits) == 1 else None
    if call is None or call.op in P2P_OPS or finding.kind == "extra_call":
        return finding
    instead = _same_elsewhere(case, graph, number, call)
    found = repeated(case.run, number, call)
    if instead is not None:
        found = Repeated(call, 1)
    if found is None or found.call.op in P2P_OPS:
        return finding
    comm = case.run.communicators[found.call.comm]
    who, others = rank_text(case.run, number), sorted(graph.waiting.keys() - {number})
    said = Wait.POSTED_MORE if instead is None else Wait.POSTED_ELSEWHERE
    did = said.of(
        who=who,
        calls=plural(found.calls, "call"),
        call=found.call,
        comm=comm,
        other=instead and case.run.communicators[instead.comm],
        waiting=others,
    )
    return replace(
        finding,
        kind="extra_call" if instead is None else "comm_swap",
        summary=did,
        comm=comm,
        seq=found.call.seq,
        odd=found.call,
        odd_is="call",
        peers=instead,
        extent=found.calls,
        blame=Blame.on(finding.diverging_ranks),
        hangs=True,
        inferred=(*finding.inferred, str(Doubt.SAME_BEFORE)),
    )


def _same_elsewhere(case: Case, graph: WaitGraph, number: int, call: Call) -> Call | None:
    """Return the call in which peers wait that is the same, on another group of the same ranks.

    Where the call is the first of its group, which of the two is meant is not known.
    """
    if call.seq == 1:
        return None
    members = {*case.run.communicators[call.comm].ranks}
    for wait in graph.waits:
        own = wait.call
        if own is None:
            continue
        is_other = wait.rank != number and own.comm != call.comm and own.thread == call.thread
        if not is_other or {*case.run.communicators[own.comm].ranks} != members:
            continue
        if (own.sign(), own.site, own.user_site) == (call.sign(), call.site, call.user_site):
            return own if call.site is not None else None
    return None


def _with_all_rivals(graph: WaitGraph, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with all ranks as candidates whose repair alone releases all that waits.

    Where a cause is about these alone, those on their peers as well are consequences.
    """
    either = frozenset().union(*graph.cheapest)
    is_exact = any(one.role == "cause" and _about(one) <= either for one in findings)
    return [
        as_consequence(one)
        if is_exact and _is_wait(one) and not _about(one) <= either
        else _with_rivals(graph, one)
        for one in findings
    ]


def _with_rivals(graph: WaitGraph, finding: Finding) -> Finding:
    """Return a finding with all ranks as candidates whose repair alone releases all that waits.

    It is a consequence if it is about none of these, nor of pairs that do.
    """
    if finding.role != "cause" or not _is_wait(finding):
        return finding
    about = _about(finding)
    either = frozenset().union(*graph.cheapest)
    if about.isdisjoint(either):
        return as_consequence(finding)
    rivals = either - about
    if finding.diverging_ranks or not rivals or any(len(one) > 1 for one in graph.cheapest):
        return finding
    return replace(
        finding.undecided(sorted(about | rivals)),
        inferred=(*finding.inferred, Doubt.RIVAL.of(sorted(rivals))),
    )


def _about(finding: Finding) -> set[int]:
    return {*finding.diverging_ranks, *finding.candidate_ranks}


def _is_behind(case: Case, graph: WaitGraph, finding: Finding) -> bool:
    """Return whether a rank does not wait in a call that does not complete, but in an earlier one.

    Its peers, which may be in the call, wait for it.
    """
    comm, seq = finding.comm, finding.seq
    if finding.kind != "stalled" or comm is None or seq is None:
        return False
    if any(call is not None and call.op in P2P_OPS for call in (finding.odd, finding.peers)):
        return False
    for rank in {*comm.ranks} & graph.waiting.keys():
        log = case.run.by_rank[rank].logs[comm.key]
        place = log.call(seq).position if log.first <= seq <= log.calls else -1
        if all(wait.call and wait.call.position < place for wait in graph.waiting[rank]):
            return True
    return False


def _either(case: Case, graph: WaitGraph, ranks: tuple[int, ...]) -> Finding:
    """Return a finding about ranks that wait for each other, any of which may have diverged."""
    calls = [wait.call for rank in ranks for wait in graph.waiting.get(rank, ()) if wait.call]
    comm = case.run.communicators[calls[0].comm] if calls else None
    lines = tuple(
        Wait.RANK_FOR.of(wait, case.run.communicators[wait.call.comm])
        for _, waits in sorted(graph.waiting.items())
        for wait in waits
        if wait.call
    )
    return Finding(
        kind="order_cycle",
        summary=Wait.EACH_OTHER.of("; ".join(lines[:_SHOWN])),
        comm=comm,
        seq=None,
        blame=Blame.among(ranks),
        role="cause",
        analyzer="accounting",
        evidence=lines,
        inferred=(str(Doubt.WHICH_IS_WRONG),),
    )


def _is_hidden(case: Case, graph: WaitGraph) -> bool:
    """Return whether ranks without a record account for all that waits, and most ranks have one."""
    few = 2 * len(graph.unseen) < case.run.expected
    lost = graph.awaited & graph.unseen <= {*case.run.missing} - {*case.run.unreadable}
    return bool(graph.waits) and not graph.abnormal and few and lost and graph.explains(())


def _by_unseen(case: Case, graph: WaitGraph, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with the ranks without a record as cause, where all wait for them.

    A rank that waits in a transfer with one of them has not stayed away from a collective.
    """
    awaited = graph.awaited & graph.unseen
    demoted = []
    for one in findings:
        is_victim = _is_wait(one) and graph.waiting.keys() >= {*one.diverging_ranks}
        follows = is_victim and not _is_on(one, graph.unseen)
        demoted.append(as_consequence(one) if follows else one)
    if any(one.role == "cause" for one in demoted):
        return demoted
    found = _promoted(demoted, awaited, candidates=True)
    if not any(one.role == "cause" for one in found) and len(awaited) == 1:
        found = [*_held_up_by(case, graph, awaited), *found]
    return found if any(one.role == "cause" for one in found) else list(findings)


def _is_on(finding: Finding, ranks: Collection[int]) -> bool:
    """Return whether a finding says that some of these ranks did not come."""
    named = finding.diverging_ranks or finding.candidate_ranks
    return finding.kind in _LATE and bool(named) and {*ranks}.issuperset(named)


def _promoted(
    findings: Sequence[Finding], ranks: Collection[int], *, candidates: bool = False
) -> list[Finding]:
    """Return findings with a consequence as cause for each late rank that no cause names.

    Args:
        findings: The findings.
        ranks: The late ranks.
        candidates: Whether it may name them as candidates.
    """
    found, named = [], _named(findings)
    for one in findings:
        those = {*(one.diverging_ranks or (one.candidate_ranks if candidates else ()))}
        if one.kind in _LATE and one.role == "consequence" and those and those <= {*ranks} - named:
            one, named = replace(one.doubted(), role="cause"), named | those
        found.append(one)
    return found


def _reduced(graph: WaitGraph, ranks: Collection[int]) -> frozenset[int]:
    """Return ranks without victims, and without those that wait for something that is not seen."""
    kept = graph.without_victims(ranks)
    return kept - graph.obscure or kept


def _named(findings: Sequence[Finding]) -> frozenset[int]:
    """Return the ranks that the causes among findings name."""
    causes = (one for one in findings if one.role == "cause")
    return frozenset(rank for one in causes for rank in one.diverging_ranks)


def _only_repair(case: Case, graph: WaitGraph) -> frozenset[int] | None:
    """Return the ranks whose repair alone releases all that waits; None where several do.

    A rank that waits may have posted an extra call, unless its round was answered; or those that
    have not come to it are held up together, as by one storage, unless they have ended in order.
    """
    repairs = graph.cheapest
    if len(repairs) > 1 and not graph.unseen:
        waiting = frozenset().union(*repairs) & graph.waiting.keys()
        innocent = were_answered(case, (n for n in waiting if not _has_ended(case, graph, n)))
        kept = [one for one in repairs if innocent.isdisjoint(one)]
        # Of one that waits itself it is open what it did instead of what its peers expect.
        repairs = kept if len(kept) == 1 and graph.waiting.keys().isdisjoint(kept[0]) else repairs
    if len(repairs) != 1 or repairs[0] == case.run.by_rank.keys():
        return None
    others = graph.sinks - repairs[0]
    return repairs[0] if all(case.run.by_rank[number].exited for number in others) else None


def _is_wait(finding: Finding) -> bool:
    """Return whether a finding is about ranks that wait for others, and not about what differs."""
    if finding.kind == "extra_call" and finding.peers is not None:
        return False
    if finding.kind == "p2p_mismatch" and None not in (finding.odd, finding.peers):
        return False
    return finding.kind in _IN_GRAPH


def _among(finding: Finding, kept: frozenset[int]) -> Finding:
    """Return a finding about those of its ranks that are no victims of others."""
    ranks = tuple(rank for rank in finding.diverging_ranks if rank in kept)
    if ranks == finding.diverging_ranks:
        return finding
    if not ranks:
        return as_consequence(finding)
    victims = [rank for rank in finding.diverging_ranks if rank not in kept]
    return replace(
        finding.with_note(Wait.VICTIMS.of(victims=victims, ranks=ranks)),
        blame=Blame.on(ranks, finding.confidence),
    )


def _settled(graph: WaitGraph, finding: Finding, repair: frozenset[int]) -> Finding:
    """Return a finding about the ranks whose repair releases all that waits."""
    if finding.diverging_ranks:
        return _among(finding, repair)
    if finding.kind == "stalled" or not repair.issubset(finding.candidate_ranks):
        return as_consequence(finding)
    if graph.unseen.intersection(finding.candidate_ranks):
        return finding  # what has no record may not have come either
    ranks = tuple(sorted(repair))
    if innocent := sorted(frozenset().union(*graph.cheapest) - repair):
        return replace(finding.naming(ranks), inferred=(Doubt.ANSWERED.of(innocent),))
    waiting = plural(len(graph.waiting), "waiting rank")
    return finding.with_note(Doubt.ONLY.of(ranks, waiting)).naming(ranks)


def _unless_rivals(case: Case, graph: WaitGraph, finding: Finding) -> Finding:
    """Return a finding that is not certain where other ranks account for all that waits as well.

    Nor where the rank itself waits, for others or for what is not seen; nor where it ended of a
    connection that it lost, which a peer may have closed.
    """
    named = {*finding.diverging_ranks}
    if finding.kind in _LATE and named and graph.partly_waiting.issuperset(named):
        sinks = [one for one in graph.cheapest if one <= graph.sinks - named]
        if sinks:
            note = f"; {Doubt.OTHER_THREAD.of(named)}"
            return finding.with_clause(note).undecided(sorted(named.union(*sinks)))
    if finding.confidence != "certain" or not _is_wait(finding):
        return finding
    known = [case.run.by_rank.get(number) for number in finding.diverging_ranks]
    if lost := [rank.rank for rank in known if rank is not None and ended_by_peers(rank)]:
        return finding.doubted(Doubt.LOST.of(lost))
    if held := graph.obscure.intersection(finding.diverging_ranks):
        return finding.doubted(Doubt.UNSEEN.of(held))
    if partly := graph.partly_waiting.intersection(finding.diverging_ranks):
        return finding.doubted(Doubt.OTHER_THREAD.of(partly))
    behind = {
        peer for rank in named for wait in graph.waiting.get(rank, ()) for peer in wait.awaited
    }
    if finding.kind in _LATE and behind - named:
        return finding.doubted(Doubt.HELD_UP.of(named, behind - named))
    others = [one for one in graph.cheapest if not (one <= named or named <= one)]
    if not others:
        return finding
    return finding.doubted(Doubt.RIVAL.of(others[0]))


def _unless_others_closed(case: Case, finding: Finding) -> Finding:
    """Return a finding that names nobody if others may as well have closed the connections."""
    closers = case.losses.closers
    named = {*finding.diverging_ranks}
    if finding.role != "cause" or not named or not named < closers:
        return finding
    rank = case.run.by_rank.get(min(named))
    if finding.kind not in _LATE or (rank is not None and case.outlived_by(rank, case.waiting)):
        return finding
    return finding.undecided(sorted(closers))


def _proved(case: Case, graph: WaitGraph, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings whose causes have their proof, and are certain only if it is the only one."""
    causes = [one for one in findings if one.role == "cause"]
    proof = prove(case, graph, causes)
    lacks = proof is not None and proof.changes and proof.lacks_few and case.stalled
    if proof is not None and lacks and not graph.explains(proof.ranks):
        late = _held_up_by(case, graph, proof.missing)
        causes, findings = [*late, *causes], [*late, *findings]
        proof = prove(case, graph, causes) or proof
    if proof is None:
        return list(findings)
    judged = all(map(_is_wait, causes)) and not case.losses.unaccounted
    rival = proof.rival if proof.held and judged else None
    if rival is not None and graph.explains({rival[0]}):
        either = sorted({*proof.ranks, rival[0]}.union(*graph.cheapest))
        findings = [one.undecided(either) if one in causes else one for one in findings]
        causes = [one for one in findings if one.role == "cause"]
    lines, sure = [f"{proof}"], proof.is_whole and proof.is_alone
    lines += [Doubt.STILL_WAIT.of(proof.held)] if proof.held else []
    return [
        replace(
            one if sure else one.doubted(),
            proof=proof.to_dict(one.kind),
            inferred=(*one.inferred, *lines),
        )
        if one.role == "cause" and not one.survived
        else one
        for one in findings
    ]


def _held_up_by(case: Case, graph: WaitGraph, numbers: Iterable[int]) -> list[Finding]:
    """Return findings about ranks at which all chains of waiting end, if these begin in calls."""
    return [
        _at_an_end(case, graph, number) for number in sorted(numbers) if graph.calls_for(number)
    ]


def _at_an_end(case: Case, graph: WaitGraph, number: int) -> Finding:
    waiting = graph.calls_for(number)
    _, first = min(waiting, key=lambda one: (one[1].time_ns or 0, one[0]))
    rank = case.run.by_rank.get(number)
    comm = case.run.communicators[first.comm]
    those = [one for one, call in waiting if call.comm == comm.key]
    how = None if rank is None else case.how_it_ended(rank)
    kind = "not_joined"
    last = None if rank is None else rank.last_call(transfers=True)
    state = str(Place.POSTED_NONE)
    if last is not None:
        state = Place.NEVER_CAME.of(call=last, comm=case.run.communicators[last.comm])
    if rank is None:
        kind, state = "dead_rank", str(Place.NO_RECORD)
    elif how is not None or number in graph.gone:
        kind, state = "dead_rank", Place.IS_DEAD.of(how or Place.LIVED_ON)
    return Finding(
        kind=kind,
        summary=Wait.HELD_UP.of(
            who=rank_text(case.run, number), state=state, waiting=those, call=first, comm=comm
        ),
        comm=comm,
        seq=None,
        blame=Blame.on((number,)),
        odd=last,
        odd_is="last_call",
        peers=first,
        role="cause",
        analyzer="accounting",
        evidence=tuple(Wait.OPEN.of(one, call) for one, call in waiting),
        inferred=tuple(
            Doubt.WAITS_FOR.of(one, sorted(graph.awaited_by(one))) for one, _ in waiting
        ),
    )

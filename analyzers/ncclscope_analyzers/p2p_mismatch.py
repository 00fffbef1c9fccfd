"""A send and a receive that are one pair and do not fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ncclscope.analysis.case import Case
from ncclscope.analysis.wording import call_text, comm_text, rank_text, sentence, site_text
from ncclscope.model import Call, Communicator, Finding

__all__ = ["P2pMismatch"]


class P2pMismatch:
    """A send and the receive it is paired with differ in size or element type."""

    name = "p2p_mismatch"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yields the first pair that does not fit, for each direction between two ranks.

        Sends and receives between two ranks are paired in their order, in each direction
        apart, which is how NCCL and gloo pair them.
        """
        for comm in case.run.communicators.values():
            for sender, receiver, sends, receives in self._directions(case, comm):
                for number, (sent, received) in enumerate(zip(sends, receives, strict=False), 1):
                    if _fits(sent, received):
                        continue
                    yield self._finding(case, comm, (sender, receiver), number, sent, received)
                    break

    def _directions(
        self, case: Case, comm: Communicator
    ) -> Iterator[tuple[int, int, list[Call], list[Call]]]:
        calls = {}
        for place, number in enumerate(comm.ranks):
            rank = case.run.by_rank.get(number)
            # Where records were overwritten, the first that is left is paired with nothing.
            if rank is not None and not rank.lost and not rank.window and comm.key in rank.p2p:
                calls[place] = (number, rank.p2p[comm.key])
        for one, (sender, sent) in calls.items():
            for other, (receiver, received) in calls.items():
                if one == other:
                    continue
                sends = [call for call in sent if call.op == "send" and call.peer == other]
                receives = [call for call in received if call.op == "recv" and call.peer == one]
                yield sender, receiver, sends, receives

    def _finding(
        self,
        case: Case,
        comm: Communicator,
        pair: tuple[int, int],
        number: int,
        sent: Call,
        received: Call,
    ) -> Finding:
        sender, receiver = pair
        return Finding(
            kind=self.name,
            summary=(
                f"{sentence(rank_text(case.run, sender))} sent {call_text(sent)} to "
                f"{rank_text(case.run, receiver)} on {comm_text(comm)}, which received "
                f"{call_text(received)}: transfer {number} between them does not fit."
            ),
            comm=comm,
            seq=sent.seq,
            candidate_ranks=tuple(sorted(pair)),
            odd=sent,
            peers=received,
            confidence="ambiguous",
            analyzer=self.name,
            evidence=(
                f"transfers 1 to {number - 1} from rank {sender} to rank {receiver} fit"
                if number > 1
                else f"it is the first transfer from rank {sender} to rank {receiver}",
                f"rank {sender}: {call_text(sent)}{site_text(sent)}",
                f"rank {receiver}: {call_text(received)}{site_text(received)}",
            ),
            inferred=("the records do not say which of the two is wrong",),
        )


def _fits(sent: Call, received: Call) -> bool:
    same_type = sent.dtype == received.dtype or None in (sent.dtype, received.dtype)
    known = sent.numel and received.numel
    return same_type and (not known or sent.numel == received.numel)

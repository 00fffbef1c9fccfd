"""Rings whose damage is found when their records are read.

A ring is not read completely when it is opened. If damage is found later, the other rings are
kept: the damaged one becomes a note, and its rank is missing.
"""

from __future__ import annotations

from dataclasses import replace

from ncclscope.errors import DamagedFileError
from ncclscope.model import Communicator, DamagedCall, Rank, Run
from ncclscope.untrusted import printable


def without_damaged(run: Run, error: DamagedFileError) -> Run:
    """Return a run without the ring that an error names.

    Raises:
        DamagedFileError: The same error, where no other ring is left.
    """
    ranks = tuple(rank for rank in run.ranks if not _is_about(error, rank.source))
    others = tuple(rank for rank in run.others if not _is_about(error, rank.source))
    left_out = len(run.ranks) + len(run.others) - len(ranks) - len(others)
    if not left_out or not ranks:
        raise error
    gone = {rank.rank for rank in run.ranks} - {rank.rank for rank in ranks}
    return replace(
        run,
        ranks=ranks,
        others=others,
        notes=(*run.notes, printable(str(error))),
        unreadable=tuple(sorted({*run.unreadable, *gone})),
    )


def readable(run: Run) -> Run:
    """Return a run without the rings that cannot be read completely.

    Raises:
        DamagedFileError: No ring is left.
    """
    for rank in (*run.ranks, *run.others):
        try:
            for log in rank.logs.values():
                log.positions(log.first, log.calls + 1)
        except DamagedFileError as error:
            run = without_damaged(run, error)
    return run


def has_damaged_transfers(rank: Rank, comm: Communicator) -> bool:
    """Return whether sends or receives of a rank on a communicator cannot be paired with others.

    A record is damaged, or its peer is no member or not known: which call of the others it belongs
    to, and with it all later ones, is unknown.
    """
    members = len(comm.ranks)
    return is_peerless(rank, comm) or any(
        isinstance(call, DamagedCall) or (call.peer is not None and 0 < members <= call.peer)
        for call in rank.p2p.get(comm.key, ())
    )


def is_peerless(rank: Rank, comm: Communicator) -> bool:
    """Return whether NCCL did not report the peer of a send or receive: it was never launched.

    A receive from any rank, which has no peer either, does not exist on NCCL.
    """
    transfers = rank.p2p.get(comm.key, ()) if comm.hash else ()
    return any(call.peer is None and not isinstance(call, DamagedCall) for call in transfers)


def _is_about(error: DamagedFileError, source: str) -> bool:
    return bool(error.path) and printable(error.path) == source

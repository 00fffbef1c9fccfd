"""Sentences about what the repair of some ranks releases."""

from __future__ import annotations

from ncclscope.wording.phrase import Phrase


class Repair(Phrase):
    """What ranks do if they are repaired, and what that leaves."""

    IF = "if {did}, {counts} would go on{nearest}"
    AND = " and "
    AS_EXPECTED = "{} did as the others expect"
    AS_PEERS = "{ranks} had posted {calls} as {ranks:their} peers did"
    ALL = "all {}"
    SOME = "{} of {} waiting ranks"
    NEAREST = "; with rank {} instead, {} of {}"
    RELEASES = "releases {} of {} waiting ranks"
    LEAVES_END = "leaves the end of {} unexplained"
    LEAVES_UNLIKE = "leaves call {one.seq} on {one.comm} of {one.odd} unlike that of {others}"
    LEAVES_SWAP = (
        "leaves unexplained that rank {0.rank} posted on {0.comm} what it lacks on {0.fewer}"
    )

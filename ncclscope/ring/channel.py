"""The writing end of a communicator."""

from __future__ import annotations


class Channel:
    """The writing end of one communicator in one ring.

    Attributes:
        index: Number of the communicator in the file.
        seq: Number of collectives recorded so far.
        hash: Running hash after them.
        p2p: Number of point-to-point calls recorded so far.
    """

    __slots__ = ("hash", "index", "p2p", "seq")

    def __init__(self, index: int) -> None:
        self.index = index
        self.seq = 0
        self.hash = 0
        self.p2p = 0

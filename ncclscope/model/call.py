"""The records of one process: communicators, calls, engine steps, activities."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ncclscope.model import sites
from ncclscope.model.graphs import Replay
from ncclscope.model.signature import ROOTED_OPS, sign

CREATION_SUFFIX = "/groups"
"""Suffix of the key of a communicator on which only group creations are posted."""

_NUMBER = re.compile(r":\d+")


class State(enum.IntEnum):
    """The known progress of a call."""

    SCHEDULED = 0
    STARTED = 1
    COMPLETED = 2

    @property
    def word(self) -> str:
        """Spelling used in files and on screens."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Communicator:
    """A set of ranks that share one sequence of collectives.

    Attributes:
        key: Unique key that only the members share; never the name, which each process numbers
            on its own.
        label: Display name, such as ``tp:0``; not unique.
        ranks: Global ranks of the members, in the communicator's order.
        backend: ``nccl``, ``gloo``, ``shm``, ...
        created_at: The line of the user's program that created it, with its path, if recorded.
        timeout: Seconds after which torch gives up a call on it; 0 where that is not known.
        hash: NCCL's identifier of it, as RAS and NCCL's log spell it; empty where it is not known.
        size: Number of members according to NCCL; 0 where it is not known.
        part: Common name of communicators with the same role in other replicas, where the role
            was inferred from numbers and members; empty where the label shows it.
        is_partial: Whether other ranks may be members, too: the input names none, and those are
            known that posted calls.
    """

    key: str
    label: str = ""
    ranks: tuple[int, ...] = ()
    backend: str = ""
    part: str = ""
    created_at: str | None = field(default=None, compare=False)
    timeout: int = field(default=0, compare=False)
    hash: str = field(default="", compare=False)
    size: int = field(default=0, compare=False)
    is_partial: bool = field(default=False, compare=False)

    @property
    def kind(self) -> str:
        """The label without its number: ``tp`` of ``tp:0``, ``tp/cpu`` of ``tp:0/cpu``.

        Communicators with the same role in different replicas have the same kind.
        """
        return self.part or _NUMBER.sub("", self.label)

    @property
    def creates_groups(self) -> bool:
        """Whether its calls are creations of process groups, not collectives on data."""
        return self.key.endswith(CREATION_SUFFIX)

    def to_dict(self) -> dict[str, Any]:
        """Return the communicator in the terms of the JSON verdict."""
        return {
            "key": self.key,
            "label": self.label,
            "ranks": list(self.ranks),
            "backend": self.backend,
            "created_at": self.created_at,
        }


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded call.

    Attributes:
        op: Canonical name, torch spelling (``all_reduce``, ``all_gatherv``, ``send``).
        comm: Key of the communicator.
        seq: Number on the communicator, from 1; point-to-point calls are counted separately.
        position: Number in the whole stream of the rank, from 0; with gaps among replays.
        dtype: Element type, such as ``bfloat16``; of a ``new_group`` its backend.
        redop: Reduction, such as ``sum``.
        root: Root as a rank of the communicator.
        peer: Other side of a send or receive, as a rank of the communicator.
        numel: Elements of the input.
        shape: Shape of the input; for more than four dimensions, the last ones are multiplied
            into the fourth. Of a dispatch or combine between experts ``[experts, hidden]``.
        sizes: First dimensions per member of a v-collective, splits of an all_to_all, or
            global ranks of the members of a ``new_group``; None where there are none or they
            have been overwritten.
        out_sizes: Rows that an all_to_all receives from each member, like ``sizes``, if recorded.
        out_shape: Shape of the output, where it was recorded.
        site: The call site: ``file.py:120 function``.
        full_site: The same with the file's path, as far as that was recorded.
        user_site: The first frame of the user's own program, with its path, where ``site`` lies
            in an installed package.
        time_ns: Host clock at posting, nanoseconds since 1970.
        state: The known progress of the call.
        captured: Posted while a CUDA graph was being captured.
        group: Number of the NCCL group (ncclGroupStart) it was posted in; None outside.
        graph: Number of the CUDA graph it was captured into, or replayed from.
        signature: Hash of what members must agree on, see :mod:`ncclscope.model.signature`.
        replay: The replay of ``graph`` that it is part of; None for a posted call.
        thread: Number of the thread of its rank that posted it; 0 where that is not known.
        root_rank: Global rank of the root, where that is not its rank of the communicator.
    """

    op: str
    comm: str
    seq: int
    position: int
    dtype: str | None = None
    redop: str | None = None
    root: int | None = None
    peer: int | None = None
    numel: int | None = None
    shape: tuple[int, ...] | None = None
    sizes: tuple[int, ...] | None = None
    out_shape: tuple[int, ...] | None = None
    site: str | None = None
    time_ns: int | None = None
    state: State = State.SCHEDULED
    captured: bool = False
    group: int | None = None
    graph: int | None = None
    signature: int = 0
    out_sizes: tuple[int, ...] | None = None
    replay: Replay | None = None
    thread: int = field(default=0, compare=False)
    full_site: str | None = field(default=None, compare=False)
    user_site: str | None = field(default=None, compare=False)
    root_rank: int | None = field(default=None, compare=False)

    @property
    def line(self) -> tuple[str | None, str | None]:
        """The site and the user's site, which together tell apart the statements of a program."""
        return self.site, self.user_site

    @property
    def lacks_root(self) -> bool:
        """Whether it has a root that is not recorded."""
        return self.root is None and self.op in ROOTED_OPS

    @property
    def global_root(self) -> int | None:
        """Global rank of the root; None where there is none."""
        return self.root if self.root_rank is None else self.root_rank

    def with_root(self, members: Sequence[int]) -> Call:
        """Return the call with the global rank of its root, one of its communicator's members."""
        if self.root is None or not 0 <= self.root < len(members):
            return self
        return replace(self, root_rank=members[self.root])

    def sign(self) -> int:
        """Return the signature of the known parameters: its own where none was overwritten."""
        return sign(
            self.op,
            dtype=self.dtype,
            redop=self.redop,
            root=self.root,
            numel=self.numel,
            shape=self.shape,
            sizes=self.sizes,
            out_shape=self.out_shape,
            is_captured=self.captured,
            is_replayed=self.replay is not None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters in the terms of the JSON verdict."""
        site = self.site and (self.full_site or self.site)
        return {
            "op": self.op,
            "shape": None if self.shape is None else list(self.shape),
            "dtype": self.dtype,
            "redop": self.redop,
            "root": self.root,
            "peer": self.peer,
            "sizes": None if self.sizes is None else list(self.sizes),
            "site": site,
            "user_site": self.user_site,
            "frame": sites.frame_of(site),
            "user_frame": sites.frame_of(self.user_site),
            "state": self.state.word,
            "replay": None if self.replay is None else self.replay.to_dict(self.graph),
        }


@dataclass(frozen=True, slots=True)
class DamagedCall(Call):
    """A call whose record contradicts the running hash: only its number is known."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine: the calls from ``position`` on belong to it."""

    number: int
    position: int
    tokens: int | None = None
    dummy: bool = False


@dataclass(frozen=True, slots=True)
class Activity:
    """The newest occurrence of an activity of a process besides its calls, such as a wait for work.

    Attributes:
        name: Name of the activity, such as ``dequeue``.
        detail: One further word, such as the method that runs.
        number: A related number, such as the step; 0 for none.
        count: Number of occurrences so far.
        since_ns: When it began, nanoseconds since 1970.
        until_ns: When it ended; None while it lasts, and where the process ended in it.
    """

    name: str
    detail: str | None
    number: int
    count: int
    since_ns: int
    until_ns: int | None = None

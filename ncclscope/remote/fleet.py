"""The centre: asks nodes, all of them at once, and keeps what they said.

Two logs with the same running hash after the same number of calls hold the same calls, hence the
same hashes before. What one of them was asked, the others need not be asked: a job of any size
has a few such classes, and most questions are about one rank of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ncclscope.errors import DamagedFileError, InputError
from ncclscope.remote.spelling import pack, unpack

__all__ = ["Client", "Fleet", "LocalClient", "Query", "Traffic"]


class Client(Protocol):
    """A way to reach depots."""

    @property
    def names(self) -> Sequence[str]:
        """The nodes."""
        ...

    def summaries(self) -> Mapping[int, bytes | str]:
        """Ask all nodes for their summaries; of one that fails, why."""
        ...

    def ask(self, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Ask some nodes, by number, all at once.

        Raises:
            InputError: One of them does not answer.
        """
        ...


@dataclass
class Traffic:
    """What has travelled.

    Attributes:
        summaries: Bytes of summaries.
        requests: Bytes of requests.
        answers: Bytes of answers.
        rounds: How often somebody was asked.
        questions: How much was asked in all.
    """

    summaries: int = 0
    requests: int = 0
    answers: int = 0
    rounds: int = 0
    questions: int = 0

    @property
    def total(self) -> int:
        """All bytes."""
        return self.summaries + self.requests + self.answers


@dataclass(frozen=True)
class Query:
    """A question to a node, and who is told the answer.

    Attributes:
        node: The node's number.
        words: The question; see :mod:`ncclscope.remote.node_server`.
        take: Told the answer and the table of kinds.
    """

    node: int
    words: Sequence[Any]
    take: Callable[[Any, Sequence[Any]], None]


class Fleet:
    """Depots that can be asked.

    Args:
        asker: How they are reached.

    Attributes:
        traffic: What has travelled so far.
    """

    def __init__(self, asker: Client) -> None:
        self._asker = asker
        self.names = asker.names
        self.traffic = Traffic()

    def summaries(self) -> dict[int, Any]:
        """Return the summaries of all nodes; of one that failed, why, as a text."""
        found: dict[int, Any] = {}
        for node, data in self._asker.summaries().items():
            if isinstance(data, str):
                found[node] = data
                continue
            self.traffic.summaries += len(data)
            found[node] = unpack(data)
        return found

    def ask(self, questions: Iterable[Query]) -> None:
        """Ask, and tell the answers to whoever wants them.

        Raises:
            InputError: A node does not answer, or says what cannot be understood.
        """
        by_node: dict[int, list[Query]] = {}
        for question in questions:
            by_node.setdefault(question.node, []).append(question)
        requests = {
            node: pack([list(one.words) for one in asked]) for node, asked in by_node.items()
        }
        self.traffic.rounds += 1
        self.traffic.requests += sum(map(len, requests.values()))
        self.traffic.questions += sum(map(len, by_node.values()))
        for node, data in self._asker.ask(requests).items():
            self.traffic.answers += len(data)
            try:
                told = unpack(data)
                for one, answer in zip(by_node[node], told["answers"], strict=True):
                    one.take(answer, told["kinds"])
            except (KeyError, TypeError, ValueError, IndexError, DamagedFileError):
                raise InputError(
                    f"{self.names[node]} sent what cannot be understood",
                    "the same ncclscope must be installed there",
                ) from None


class LocalClient:
    """Depots in this process: what a node would do, without the way there.

    Args:
        depots: By name.
    """

    def __init__(self, depots: Mapping[str, Any]) -> None:
        self.names = tuple(depots)
        self._depots = tuple(depots.values())

    def summaries(self) -> dict[int, bytes | str]:
        return {node: depot.summary() for node, depot in enumerate(self._depots)}

    def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        return {node: self._depots[node].answer(request) for node, request in requests.items()}

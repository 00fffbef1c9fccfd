"""Query all nodes in parallel, and count the traffic.

Two logs with the same running hash after the same number of calls hold the same calls, and the
same hashes before. So an answer for one of them holds for all. A job of any size has only a few
classes of equal logs, and most queries concern one rank of each class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from ncclscope.errors import DamagedFileError, InputError
from ncclscope.model.ties import grouped
from ncclscope.remote.spelling import pack, unpack
from ncclscope.untrusted import printable

INVALID = (AttributeError, DamagedFileError, IndexError, KeyError, TypeError, ValueError)
"""What reading a malformed message raises."""


class LostNodeError(InputError):
    """A node that does not answer, or not as it should.

    Args:
        node: Number of the node.
        message: What happened.
        help: What to do about it.
    """

    def __init__(self, node: int, message: str, help: str = "") -> None:
        super().__init__(message, help)
        self.node = node


class Client(Protocol):
    """A way to reach node servers."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the nodes, by number."""
        ...

    def summaries(self) -> Mapping[int, bytes | str]:
        """Return each node's summary, or the reason why it failed, by node number."""
        ...

    def ask(self, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Send requests to some nodes in parallel; return their answers by node number.

        Raises:
            LostNodeError: A node does not answer.
        """
        ...


def answered(found: Mapping[int, bytes | str]) -> dict[int, bytes]:
    """Return the answers of the nodes that did not fail, by node number."""
    return {node: data for node, data in found.items() if isinstance(data, bytes)}


def all_answered(
    found: Mapping[int, bytes | str], names: Sequence[str], help: str = ""
) -> dict[int, bytes]:
    """Return the answers of all nodes, by node number.

    Args:
        found: The answers, or the reasons why there is none.
        names: Names of the nodes, by number.
        help: What to do about a node that failed.

    Raises:
        LostNodeError: A node failed.
    """
    for node, data in found.items():
        if isinstance(data, str):
            raise LostNodeError(node, f"{names[node]}: {data}", help)
    return answered(found)


@dataclass
class Traffic:
    """Network traffic of a fleet.

    Attributes:
        summaries: Bytes of summaries.
        requests: Bytes of requests.
        answers: Bytes of answers.
        rounds: Number of request rounds.
        questions: Number of queries in all rounds.
    """

    summaries: int = 0
    requests: int = 0
    answers: int = 0
    rounds: int = 0
    questions: int = 0

    @property
    def total(self) -> int:
        """Total bytes."""
        return self.summaries + self.requests + self.answers


@dataclass(frozen=True)
class Query:
    """A query to a node, and the callback for its answer.

    Attributes:
        node: Number of the node.
        arguments: Name of the query and its arguments; see :mod:`ncclscope.remote.node_server`.
        take: Called with the answer and the message's table of kinds.
    """

    node: int
    arguments: Sequence[Any]
    take: Callable[[Any, Sequence[Any]], None]


class Fleet:
    """The node servers of a job.

    Args:
        client: Reaches the node servers.

    Attributes:
        names: Names of the nodes, by number.
        traffic: Traffic so far.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.names = client.names
        self.traffic = Traffic()

    def summaries(self) -> dict[int, Any]:
        """Return each node's summary, or the reason why it failed as a text, by node number."""
        found: dict[int, Any] = {}
        for node, data in self._client.summaries().items():
            if isinstance(data, str):
                found[node] = data
                continue
            self.traffic.summaries += len(data)
            try:
                found[node] = unpack(data)
            except DamagedFileError:
                found[node] = "it sent an invalid message"
        return found

    def ask(self, questions: Iterable[Query]) -> None:
        """Send queries in one round, and pass each answer to its callback.

        Raises:
            LostNodeError: A node does not answer, or sends an invalid answer.
        """
        by_node = grouped(questions, lambda question: question.node)
        requests = {
            node: pack([list(one.arguments) for one in asked]) for node, asked in by_node.items()
        }
        self.traffic.rounds += 1
        self.traffic.requests += sum(map(len, requests.values()))
        self.traffic.questions += sum(map(len, by_node.values()))
        for node, data in self._client.ask(requests).items():
            self.traffic.answers += len(data)
            with self.valid(node):
                document = unpack(data)
                for one, answer in zip(by_node[node], document["answers"], strict=True):
                    one.take(answer, document["kinds"])

    @contextmanager
    def valid(self, node: int) -> Iterator[None]:
        """Turn what a malformed message of a node raises into an error that names the node."""
        try:
            yield
        except INVALID:
            raise LostNodeError(
                node,
                f"{printable(self.names[node])} sent an invalid answer",
                "install the same version of ncclscope on all nodes",
            ) from None

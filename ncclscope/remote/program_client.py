"""Node servers behind local programs, one for each host: ssh, or srun.

All hosts are asked at the same time. A host that is slow is not waited for again until it answers
promptly. A host that does not answer in time is lost, and is connected again after a pause.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ncclscope.collect.programs import ProgramNode
from ncclscope.errors import InputError
from ncclscope.remote.connection import Connection
from ncclscope.remote.fleet import all_answered, answered

PATIENCE = 1.0
"""Seconds that one poll waits for hosts that have answered promptly so far."""
START_SECONDS = 20.0
"""Seconds until the server on a host must answer; ssh itself gives up after 10 s."""
PAUSES = 1.0, 15.0
"""Shortest and longest pause before a lost host is connected again, in seconds."""
_NOT_YET = "no answer yet"
_LONGEST_WAIT = 0.2
"""Seconds between two checks of programs that have ended or take too long."""


@dataclass
class _Host:
    """A host, and what is known about the way to it.

    Attributes:
        has_answered: Whether the present connection has answered.
        report: The requested report: its number, and when it was requested.
    """

    node: ProgramNode
    pause: float
    connection: Connection | None = None
    reason: str = _NOT_YET
    has_answered: bool = False
    report: tuple[int, float] | None = None
    is_prompt: bool = True
    retry_at: float = 0.0


class ProgramClient:
    """Queries hosts through the stdin and stdout of local programs.

    Args:
        nodes: Programs that run ``ncclscope watch --serve`` on a host.
        timeout: Seconds that a host may take to answer.
        clock: Return seconds by a monotonic clock.
        patience: Seconds that one poll waits for hosts that were prompt so far.
        start: Seconds until the server on a host must answer for the first time.
        pauses: Shortest and longest pause before a lost host is connected again.
    """

    def __init__(
        self,
        nodes: Sequence[ProgramNode],
        timeout: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
        start: float = START_SECONDS,
        pauses: tuple[float, float] = PAUSES,
    ) -> None:
        self._timeout = timeout
        self._patience = patience
        self._start = start
        self._shortest, self._longest = pauses
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._hosts = [_Host(node, self._shortest) for node in nodes]
        self._closed: list[Connection] = []
        self._has_reported = False

    @property
    def names(self) -> Sequence[str]:
        """Names of the hosts."""
        return [host.node.name for host in self._hosts]

    def summaries(self) -> Mapping[int, bytes | str]:
        """Return each host's summary, or the reason why it failed, by node number."""
        self._connect()
        return self._gather("summary", dict.fromkeys(range(len(self._hosts)), b""), self._timeout)

    def reports(self) -> Mapping[int, bytes | str]:
        """Return each host's report, or the reason why it failed, by node number.

        A host that is late is left out: its report comes with a later call.
        """
        self._connect()
        began = self._clock()
        for host in self._hosts:
            if host.connection is not None and host.report is None:
                host.report = host.connection.ask("report", b"", began), began
        waiting = [host for host in self._hosts if host.is_prompt and host.report is not None]
        seconds = self._patience if self._has_reported else self._timeout
        self._run(lambda: all(map(_has_reported, waiting)), began + seconds)
        self._has_reported = True
        found = ((node, self._report_of(host)) for node, host in enumerate(self._hosts))
        return {node: report for node, report in found if report is not None}

    def ask_reporters(self, method: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Return what reporters answer by node number, without nodes that fail or are late."""
        prompt = {node: one for node, one in requests.items() if self._hosts[node].is_prompt}
        return answered(self._gather(method, prompt, self._patience))

    def ask(self, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Send requests to some nodes in parallel; return their answers by node number.

        Raises:
            LostNodeError: A node failed or did not answer in time.
        """
        return all_answered(self._gather("answer", requests, self._timeout), self.names)

    def close(self) -> None:
        """End the programs, and with them the servers on the hosts."""
        for host in self._hosts:
            if host.connection is not None:
                self._lose(host, _NOT_YET)
        for connection in self._closed:
            connection.bury()
        self._closed.clear()
        self._selector.close()

    # --- asking ------------------------------------------------------------------------------

    def _report_of(self, host: _Host) -> bytes | str | None:
        if host.connection is None or host.report is None:
            return host.reason
        number, asked = host.report
        if not host.connection.has(number):
            host.is_prompt = host.is_prompt and self._clock() - asked < self._patience
            return None if host.has_answered else host.reason
        report, read_at = host.connection.take(number)
        # The first answer includes the way there; the next shows how prompt the host is.
        host.is_prompt = not host.has_answered or read_at - asked <= self._patience
        host.report = None
        host.has_answered, host.pause = True, self._shortest
        return report

    def _gather(
        self, method: str, requests: Mapping[int, bytes], seconds: float
    ) -> dict[int, bytes | str]:
        """Send requests and wait for their answers; a host that fails does not cost the others'."""
        began = self._clock()
        asked: dict[int, tuple[Connection, int]] = {}
        for node, payload in requests.items():
            connection = self._hosts[node].connection
            # A host that is being connected again is not waited for.
            is_ready = self._hosts[node].has_answered or not self._has_reported
            if connection is not None and is_ready:
                asked[node] = connection, connection.ask(method, payload, began)

        def is_done() -> bool:
            return all(
                connection.has(number) or self._hosts[node].connection is not connection
                for node, (connection, number) in asked.items()
            )

        self._run(is_done, began + seconds)
        found: dict[int, bytes | str] = {}
        for node in requests:
            host = self._hosts[node]
            connection, number = asked.get(node, (None, 0))
            if connection is None or host.connection is not connection:
                found[node] = host.reason
            elif connection.has(number):
                found[node], _ = connection.take(number)
            else:
                connection.drop(number)
                found[node] = f"no answer for {seconds:g} s"
        return found

    # --- the programs ------------------------------------------------------------------------

    def _connect(self) -> None:
        """Start the programs of hosts that are not connected and have paused long enough."""
        now = self._clock()
        self._closed = [one for one in self._closed if not one.is_buried(now)]
        for host in self._hosts:
            if host.connection is None and now >= host.retry_at:
                try:
                    host.connection = Connection(host.node, self._selector, now)
                except InputError as error:
                    self._pause(host, str(error))

    def _run(self, is_done: Callable[[], bool], until: float) -> None:
        """Read and write until something holds, or until a time."""
        wait = 0.0
        while True:
            events = self._selector.select(wait)
            now = self._clock()
            for key, _ in events:
                # A method called before may have closed this pipe.
                if key.fd in self._selector.get_map():
                    key.data(now)
            for host in self._hosts:
                if (connection := host.connection) is not None:
                    connection.check(now, self._timeout, self._start)
                    if connection.failure:
                        self._lose(host, connection.failure)
            if is_done() or now >= until:
                return
            wait = min(until - now, _LONGEST_WAIT)

    def _lose(self, host: _Host, reason: str) -> None:
        if host.connection is not None:
            host.connection.close(self._clock())
            self._closed.append(host.connection)
        host.connection = None
        host.report = None
        host.has_answered = False
        # A new connection takes seconds, which are not those of the other hosts.
        host.is_prompt = False
        self._pause(host, reason)

    def _pause(self, host: _Host, reason: str) -> None:
        host.reason = reason
        host.retry_at = self._clock() + host.pause
        host.pause = min(2 * host.pause, self._longest)


def _has_reported(host: _Host) -> bool:
    """Return whether a requested report has come, or cannot come any more."""
    if host.connection is None or host.report is None:
        return True
    return host.connection.has(host.report[0])

"""Messages of the nodes of a Ray cluster, for ``diagnose --ray`` and ``watch --ray``."""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ncclscope.errors import DamagedFileError, InputError, NcclscopeError
from ncclscope.remote.fleet import Fleet
from ncclscope.remote.node_server import NodeServer
from ncclscope.remote.reporter import Reporter
from ncclscope.remote.rings import RemoteRings
from ncclscope.remote.run import open_remote_run
from ncclscope.remote.spelling import pack, unpack
from ncclscope.watch.watch import Watcher
from tests.fuzz.byte_damage import damage_bytes, edit
from tests.fuzz.inputs import Answer, BaseInput, Files, Input, Surface
from tests.fuzz.jobs import ring_base_inputs
from tests.fuzz.oracles import verdict_of
from tests.fuzz.surfaces.live import running
from tests.fuzz.value_damage import change_value

__all__ = ["NodeAnswers", "NodeReports"]

_NODES = {"a": ("rank-0.ring", "rank-1.ring"), "b": ("rank-2.ring",)}
_ANSWERS = "answers"
"""A file that is no message: the seed with which answers are damaged as they come."""


class _Nodes:
    """Two nodes in this process, whose first messages come from an input.

    Args:
        home: Where the rings lie.
        base: Whose rings.
    """

    names = tuple(_NODES)

    def __init__(self, home: Path, base: BaseInput) -> None:
        folders = []
        for node, names in _NODES.items():
            folder = home / base.name / node
            folder.mkdir(parents=True, exist_ok=True)
            for name in names:
                (folder / name).write_bytes(base.files[name])
            folders.append(str(folder))
        self._servers = [NodeServer([folder]) for folder in folders]
        self._reporters = [Reporter([folder]) for folder in folders]
        self.messages: Files = {
            **{f"summary-{node}": one.summary() for node, one in enumerate(self._servers)},
            **{f"report-{node}": one.report() for node, one in enumerate(self._reporters)},
        }
        self._dice: random.Random | None = None

    def take(self, given: Input) -> None:
        """Send the messages of an input from now on."""
        self.messages = given.files
        seed = given.files.get(_ANSWERS)
        self._dice = random.Random(seed) if seed else None

    def summaries(self) -> Mapping[int, bytes | str]:
        return {node: self.messages[f"summary-{node}"] for node in range(len(self.names))}

    def reports(self) -> Mapping[int, bytes | str]:
        return {node: self.messages[f"report-{node}"] for node in range(len(self.names))}

    def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        answers = _answers({n: self._servers[n].answer for n in requests}, requests)
        if len(answers) < len(requests):  # as from Ray, when an actor raises
            raise InputError("a node could not answer")
        return self._damaged(answers)

    def ask_reporters(self, method: str, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        nodes = {n: getattr(self._reporters[n], method) for n in requests}
        return self._damaged(_answers(nodes, requests))

    def _damaged(self, answers: dict[int, bytes]) -> dict[int, bytes]:
        if self._dice is None:
            return answers
        return {node: _changed(self._dice, data) for node, data in answers.items()}


def _answers(
    nodes: Mapping[int, Callable[[bytes], bytes]], requests: Mapping[int, bytes]
) -> dict[int, bytes]:
    """Return the answers of nodes; one that is asked for what it does not have gives none."""
    found = {}
    for number, request in requests.items():
        with contextlib.suppress(LookupError, TypeError, ValueError, NcclscopeError):
            found[number] = nodes[number](request)
    return found


class _NodeMessages(Surface):
    """Messages of nodes, of which one is damaged."""

    def __init__(self, name: str, home: Path, first: str) -> None:
        self._home = home / name
        self._nodes: dict[tuple[int, str], _Nodes] = {}
        names = ("healthy", "graphs", "skipped", "waiting")
        self._jobs = {one.name: running(one) for one in ring_base_inputs() if one.name in names}
        bases = []
        for job in self._jobs:
            messages = self._nodes_of(job).messages
            wanted = [name for name in messages if name.startswith(first)]
            rest = frozenset(messages.keys() - wanted)
            bases.append(BaseInput(job, messages, keep=rest))
        super().__init__(name, bases, (_damage_message, _damage_message, _damage_answers))
        self.damages = (*self.damages, damage_bytes)

    def _nodes_of(self, job: str) -> _Nodes:
        found = self._nodes.get((os.getpid(), job))
        if found is None:
            home = self._home / str(os.getpid())
            found = self._nodes[os.getpid(), job] = _Nodes(home, self._jobs[job])
        return found

    def _taken(self, given: Input) -> _Nodes:
        nodes = self._nodes_of(given.base.origin or given.base.name)
        nodes.take(given)
        return nodes


class NodeAnswers(_NodeMessages):
    """Summaries of nodes, and answers to questions."""

    def __init__(self, home: Path) -> None:
        super().__init__("nodes", home, "summary")

    def judge(self, given: Input, seed: int) -> Answer:
        return verdict_of(given, open_remote_run(Fleet(self._taken(given))), seed)


class NodeReports(_NodeMessages):
    """What nodes report while a job is watched."""

    def __init__(self, home: Path) -> None:
        super().__init__("reports", home, "report")

    def judge(self, given: Input, seed: int) -> Answer:
        now = [100.0]
        rings = RemoteRings(self._taken(given))
        watcher = Watcher(Path("nodes"), clock=lambda: now[0], rings=rings)
        status = ""
        for _ in range(2):
            now[0] += 30.0
            poll = watcher.poll()
            status = poll.status
            for cursor in poll.ranks:
                for key in cursor.comm_cursors:
                    cursor.last(key)
                cursor.newest(2)
        if any("\n" in note for note in watcher.notes):
            return Answer("error", f"several lines: {watcher.notes}")
        return Answer(status)


def _damage_message(dice: random.Random, base: BaseInput) -> Input:
    name = dice.choice(sorted(base.files.keys() - base.keep))
    return edit(name, base, "value", _changed(dice, base.files[name]))


def _damage_answers(dice: random.Random, base: BaseInput) -> Input:
    seed = str(dice.random()).encode()
    return Input(base, {**base.files, _ANSWERS: seed}, "answers")


def _changed(dice: random.Random, message: bytes) -> bytes:
    try:
        value: Any = json.loads(json.dumps(unpack(message)))
        return pack(change_value(dice, value))
    except (DamagedFileError, RecursionError):
        return message

"""Rings that are read while a job runs: by ``watch``, and by the guard in its peers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ncclscope.guard.records import RecordedComm, hashes, judge
from ncclscope.ring import layout
from ncclscope.watch.watch import Watcher
from tests.fuzz.byte_damage import damage_bytes, damage_files
from tests.fuzz.inputs import Answer, BaseInput, Input, Surface
from tests.fuzz.jobs import ring_base_inputs
from tests.fuzz.oracles import judge_verdict
from tests.fuzz.ring_damage import damage_part, forge_about, forge_record
from tests.fuzz.surfaces.workplace import Workplace
from tests.support.rings import set_word

__all__ = ["GuardedRings", "WatchedRings", "running"]

_DAMAGES = (*[damage_part] * 10, damage_bytes, damage_files, forge_about, forge_record)


class WatchedRings(Surface):
    """Rings that are damaged between two polls of ``watch``, or before the first."""

    def __init__(self, home: Path) -> None:
        names = ("healthy", "graphs", "skipped", "waiting")
        bases = [running(one) for one in ring_base_inputs() if one.name in names]
        super().__init__("watch", bases, _DAMAGES, weight=1)  # an input takes longest here
        self._workplace = Workplace(home / self.name)

    def judge(self, given: Input, seed: int) -> Answer:
        now = [100.0]
        whole = replace(given, files=given.base.files)
        with self._workplace.laid_out(whole) as directory:
            watcher = Watcher(directory, clock=lambda: now[0])
            if seed % 2:
                watcher.poll()
        with self._workplace.laid_out(given):
            polls = []
            for pause in (0.1, 60.0) if not seed % 4 else (60.0,):
                now[0] += pause
                polls.append(watcher.poll())
        for note in watcher.notes:
            if "\n" in note:
                return Answer("error", f"several lines: {note}")
        verdict = polls[-1].verdict
        if verdict is None:
            return Answer(polls[-1].status)
        # A job without progress for a minute is reported: a hung job gives no false OK.
        answer = judge_verdict(replace(given, base=_without_calls(given.base)), verdict)
        return answer if answer.kind == "blames" else Answer(polls[-1].status)


def _without_calls(one: BaseInput) -> BaseInput:
    return replace(one, calls=frozenset())


class GuardedRings(Surface):
    """Rings of peers that the guard reads inside of a job, where nothing may be raised."""

    def __init__(self, home: Path) -> None:
        names = ("healthy", "graphs", "skipped", "wrapped")
        bases = [
            replace(running(one), keep=frozenset({"rank-0.ring"}))
            for one in ring_base_inputs()
            if one.name in names
        ]
        super().__init__("guard", bases, _DAMAGES)
        self._workplace = Workplace(home / self.name)

    def judge(self, given: Input, seed: int) -> Answer:
        key = "tp:0/" + ",".join(map(str, range(len(given.base.files))))
        seq = 2 + seed % 6
        divergence = None
        with self._workplace.laid_out(given) as directory:
            own = _place(directory / "rank-0.ring", 0)
            for rank in (1, 2):
                path = directory / f"rank-{rank}.ring"
                if path.exists():
                    other = _place(path, rank)
                    hashes(other, key, seq, 64)
                    divergence = judge(own, other, key, seq, lambda _: {}) or divergence
        if divergence is None:
            return Answer("agree")
        return Answer("error" if "\n" in divergence.text else "divergence", divergence.text)


def _place(path: Path, rank: int) -> RecordedComm:
    status = path.stat()
    return RecordedComm(path, (status.st_dev, status.st_ino), 1, rank)


def running(one: BaseInput) -> BaseInput:
    """Return the rings of processes that have not recorded their end."""
    files = {}
    for name, data in one.files.items():
        changed = bytearray(data)
        set_word(changed, layout.HEADER_EXITED, 0)
        files[name] = bytes(changed)
    return replace(one, files=files)

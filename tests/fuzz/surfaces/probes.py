"""Answers of other programs: NCCL's RAS, py-spy, pystack, titles of processes."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

from ncclscope.attach.native import merge_native, parse_pystack
from ncclscope.attach.ras import parse_answer
from ncclscope.attach.stacks import parse_dump
from ncclscope.attach.titles import is_worker_title, parse_title, ranks_from_labels
from ncclscope.model.snapshot import Stacks
from ncclscope.readers import assemble
from ncclscope.readers.bundle import with_snapshot
from tests.fuzz.byte_damage import damage_bytes, edit
from tests.fuzz.inputs import Answer, BaseInput, Input, Surface
from tests.fuzz.oracles import printable_texts, verdict_of
from tests.fuzz.value_damage import damage_json
from tests.support.snapshots import DATA, in_collective, snapshot, worker

__all__ = ["RasAnswers", "StackDumps"]

_COMPARED = 16
"""One input in this many is also made a part of a verdict; the others are only read."""


class RasAnswers(Surface):
    """What a server on RAS's port answers, in JSON and in text."""

    def __init__(self) -> None:
        names = ("ras_mismatch.json", "ras_mismatch.txt", "ras_missing.json", "ras_pair.json")
        bases = [BaseInput(name, {name: (DATA / name).read_bytes()}) for name in names]
        super().__init__("ras", bases, (_damage_text, _damage_text, damage_bytes, _as_json))

    def judge(self, given: Input, seed: int) -> Answer:
        (data,) = given.files.values()
        answer = parse_answer(data.decode("utf-8", "replace"))
        if not seed % _COMPARED:
            seen = snapshot(_workers(), ras=answer, ras_before=answer)
            return verdict_of(given, with_snapshot(assemble([]), seen), 0)
        shown = [[one.hash, [rank.host for rank in one.ranks]] for one in answer.comms]
        if odd := printable_texts([answer.version, answer.remarks, shown]):
            return Answer("control byte", odd)
        return Answer("JSON" if answer.is_json else "text")


class StackDumps(Surface):
    """What py-spy and pystack print, and what processes call themselves."""

    def __init__(self) -> None:
        names = ("first-0.json", "second-3.json")
        bases = [
            BaseInput(name, {name: _shortened((DATA / "moe" / name).read_bytes())})
            for name in names
        ]
        bases.append(BaseInput("pystack", {"pystack.txt": _PYSTACK}))
        bases.append(BaseInput("titles", {"titles.txt": _TITLES}))
        super().__init__("stacks", bases, (_damage_text, damage_bytes, _as_json, _as_json))

    def judge(self, given: Input, seed: int) -> Answer:
        ((name, data),) = given.files.items()
        if name == "titles.txt":
            return _judge_titles(data.decode("utf-8", "replace"))
        if name == "pystack.txt":
            threads = parse_pystack(data.decode("utf-8", "replace"))
            stacks = merge_native(Stacks(_workers()[0].stacks[0].threads), threads)
        else:
            try:
                stacks = parse_dump(data)
            except ValueError as error:
                return Answer("refused", str(error))
        document = snapshot([replace(_workers()[0], stacks=(stacks, stacks))]).to_dict()
        if odd := printable_texts(document["workers"]):
            return Answer("control byte", odd)
        json.dumps(document, allow_nan=False).encode()
        if not seed % _COMPARED:
            seen = snapshot([*_workers()[1:], replace(_workers()[0], stacks=(stacks, stacks))])
            return verdict_of(given, with_snapshot(assemble([]), seen), 0)
        return Answer("read")


def _judge_titles(text: str) -> Answer:
    labels = [parse_title(title) for title in text.split("\n")]
    for title in text.split("\n"):
        is_worker_title(title)
    ranks = ranks_from_labels(labels)
    if ranks is not None and len(set(ranks)) < len(labels):
        return Answer("invented call", f"{ranks} for {labels}")
    return Answer("ranked" if ranks else "read")


def _workers() -> list[Any]:
    return [worker(rank, in_collective("all_gather", 15), world_size=3) for rank in range(3)]


def _shortened(data: bytes) -> bytes:
    """Return a dump with fewer threads and frames."""
    threads = json.loads(data)[:3]
    for thread in threads:
        thread["frames"] = thread["frames"][:8]
    return json.dumps(threads).encode()


def _damage_text(dice: random.Random, base: BaseInput) -> Input:
    """Lose, repeat, cut or change lines, or a number in one."""
    ((name, data),) = base.files.items()
    lines = data.split(b"\n")
    for _ in range(dice.choice((1, 1, 3))):
        place = dice.randrange(len(lines))
        line = bytearray(lines[place])
        digits = [at for at, letter in enumerate(line) if chr(letter).isdigit()]
        how = dice.choice(("number", "number", "lose", "repeat", "cut", "letter"))
        if how == "number" and digits:
            at = dice.choice(digits)
            line[at : at + 1] = dice.choice((b"", b"0", b"-", b"9" * 20, b"9" * 5000, b"1e9", b"x"))
        elif how == "cut":
            del line[dice.randrange(len(line) + 1) :]
        elif how == "letter" and line:
            line[dice.randrange(len(line))] = dice.randrange(256)
        copies = {"lose": 0, "repeat": dice.choice((2, 2, 400))}.get(how, 1)
        lines[place : place + 1] = [bytes(line)] * copies
        lines = lines or [b""]
    return edit(name, base, "lines", b"\n".join(lines))


def _as_json(dice: random.Random, base: BaseInput) -> Input:
    try:
        return damage_json(dice, base)
    except (IndexError, ValueError):  # text, or an answer of NCCL 2.28.9, which lacks a comma
        return _damage_text(dice, base)


_PYSTACK = b"""\
Traceback for thread 2660 (python) [] (most recent call last):
    (C) File "../sysdeps/start.S", line 115, in _start (/usr/bin/python3.11)
    (Python) File "/job/train.py", line 31, in <module>
    (C) File "???", line 0, in ncclAllReduce (/usr/lib/libnccl.so.2)
    (C) File "src/enqueue.cc", line 1540, in ncclEnqueueCheck (inlined) (/usr/lib/libnccl.so.2)
Traceback for thread 2661 (pt_nccl_watchdg) [] (most recent call last):
    (C) File "./nptl/pthread_create.c", line 447, in start_thread (/usr/lib/libc.so.6)
"""
_TITLES = b"""\
VLLM::Worker_DP0_TP0_EP0
VLLM::Worker_DP0_TP1_EP1
VLLM::Worker_DP1_TP0_EP2
ray::RayWorkerWrapper.execute
sglang::scheduler_TP3"""

"""Find the line of the program that enqueued a call.

The innermost frames of a collective are plumbing: torch's wrappers, vLLM's communicator classes,
ncclscope's probes. The call site is the first frame above them. If it is in an installed package,
the first frame of the user's own program is found, too.

Walking up costs about 0.1 us per frame, so frames are classified once and cached by the identity
of their code object. In an engine the whole stack is installed. So if a site has no user frame a
few times, the search there stops.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from ncclscope.model import sites
from ncclscope.model.sites import INSTALLED, PLUMBING

Instruction = int | tuple[int, int, int]
"""Offset of an instruction; with identity and offset of the user's code, if that was found."""

Place = tuple[int, Any, CodeType]

plumbing: dict[int, int] = {}
"""Role by ``id(code)``. Probes read it directly, to save a call on their hot path."""
# Keep the code objects, so that no other object gets the same id.
_codes: dict[int, CodeType] = {}
_texts: dict[tuple[int, Any], str] = {}
_lines: dict[tuple[int, Any], str] = {}
_misses: dict[int, int] = {}
"""Number of times that no user frame was found above a site, by ``id(code)`` of the site."""

elsewhere: Place | None = None
"""The site of calls from threads without a frame of the program: autograd runs a backward on a
thread of C++ for each GPU, and the site is the line that began it."""

_delivered: dict[str, bool] = {}
"""By folder, whether metadata of installed packages lies in it."""
_MOST_FOLDERS = 256

_COMPILED = "__compiled_fn_"
"""Begins the names of graphs that functions compiled by torch call; they have no lines."""
_LIMIT = 20_000
"""Most entries of these tables, as programs can create code at run time."""
_DEPTH = 32
"""Frames above a site that are searched for the user's frame."""
_PATIENCE = 4
_FOUND = -(1 << 60)

_reads_frames: bool | None = None
"""Whether the core reads frames itself; None before it was compared."""

_ours = [
    os.path.join(os.path.dirname(os.path.dirname(__file__)), room, "")
    for room in ("guard", "ring", "tracing")
]


def add_plumbing(folder: str) -> None:
    """Skip frames of a folder when locating call sites: another part of this project."""
    _ours.append(os.path.join(folder, ""))


def locate(frame: FrameType | None) -> Place | None:
    """Find the first frame that is not plumbing, from ``frame`` outwards.

    Returns:
        Identity of its code, offset of the instruction (with the user's frame, if this frame is
        installed), and the code; None if there is no such place. The first two identify the call
        site and are cheap to hash. If the thread has no such frame, :data:`elsewhere`.
    """
    known = plumbing
    while frame is not None:
        code = frame.f_code
        role = known.get(id(code))
        if role is None:
            role = _classify(code)
        if role != PLUMBING:
            if role:
                return id(code), _with_user(frame, id(code)), code
            return id(code), frame.f_lasti, code
        frame = frame.f_back
    return elsewhere


def role_of(code: CodeType) -> tuple[int, bool]:
    """Return a code's role, and whether the code is kept, so that its id stays its own."""
    return _classify(code), id(code) in plumbing


def teach(core: Any) -> None:
    """Let the core find call sites.

    It reads frames where the interpreter keeps them, and not their objects, if it knows the layout
    and both were the same on stacks of each kind.
    """
    global _reads_frames
    if _reads_frames is None:
        release = sys.implementation.name == "cpython" and not sys.abiflags
        _reads_frames = release and core.frames(sys.hexversion) and _agree(core.frames_agree)
    core.places(role_of, PLUMBING, _reads_frames)


def _agree(compare: Callable[[], bool]) -> bool:
    """Compare the frames below functions of Python and of C, generators, coroutines and exec."""

    def generated() -> Iterator[bool]:
        yield compare()
        yield from (same for same in map(_call, [compare]))

    async def awaited() -> bool:
        return await waited()

    async def waited() -> bool:
        return compare()

    found = [compare(), *generated(), eval("same()", {"same": compare}), _Calls(compare).made]
    found += [(lambda: compare())() for _ in "x"]
    try:
        awaited().send(None)
    except StopIteration as ended:
        found.append(ended.value)
    return all(found)


def _call(function: Callable[[], bool]) -> bool:
    return function()


class _Calls:
    """Calls a function where the interpreter looks up an attribute."""

    def __init__(self, function: Callable[[], bool]) -> None:
        self._function = function

    def __getattr__(self, _name: str) -> bool:
        return self._function()


def describe(code: CodeType, instruction: Instruction) -> str:
    """Return the text of a place from :func:`locate`, in the form of ``sites.join``."""
    key = (id(code), instruction)
    text = _texts.get(key)
    if text is None:
        _classify(code)  # keeps the code alive, so that the key stays unique
        if isinstance(instruction, tuple):
            at, user, user_at = instruction
            text = sites.join(_spell(code, at), _spell(_codes[user], user_at))
        else:
            text = _spell(code, instruction)
        if len(_texts) < _LIMIT and id(code) in plumbing:
            _texts[key] = text
    return text


def user_place(frame: FrameType | None) -> str | None:
    """Return the user's line above a frame, or the call site if there is none."""
    found = locate(frame)
    if found is None:
        return None
    places = sites.read(describe(found[2], found[1]))
    return places.user or places.full


def user_line(frame: FrameType | None) -> str | None:
    """Return `user_place` in short form, cached for hot paths."""
    found = locate(frame)
    if found is None:
        return None
    key = found[:2]
    line = _lines.get(key)
    if line is None:
        place = user_place(frame)
        line = "" if place is None else sites.short(place)
        if len(_lines) < _LIMIT and found[0] in plumbing:
            _lines[key] = line
    return line


def _with_user(frame: FrameType, place: int) -> Instruction:
    """Return the instruction of an installed frame, and that of the user's frame above it."""
    instruction = frame.f_lasti
    misses = _misses.get(place, 0)
    if misses >= _PATIENCE:
        return instruction
    known = plumbing
    outer = frame.f_back
    for _ in range(_DEPTH):
        if outer is None:
            break
        code = outer.f_code
        role = known.get(id(code))
        if role is None:
            role = _classify(code)
        if not role:
            if id(code) not in known:  # the table is full
                break
            if misses >= 0:
                _misses[place] = _FOUND
            return instruction, id(code), outer.f_lasti
        outer = outer.f_back
    if len(_misses) < _LIMIT:
        _misses[place] = misses + 1
    return instruction


def _spell(code: CodeType, instruction: int) -> str:
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            line = number
            break
    return sites.spell(code.co_filename, line, code.co_name)


def _classify(code: CodeType) -> int:
    known = plumbing.get(id(code))
    if known is not None:
        return known
    role = _role(code.co_filename)
    if not role and any(name.startswith(_COMPILED) for name in code.co_names):
        role = INSTALLED  # torch.compile wrote it: the program's line is that of its caller
    if len(_codes) < _LIMIT:
        _codes[id(code)] = code
        plumbing[id(code)] = role
    return role


def _role(path: str) -> int:
    """Return the role of a source file by its real path."""
    if path.startswith(tuple(_ours)):
        return PLUMBING
    role = sites.library_role(path)
    if role != PLUMBING:
        torch = getattr(sys.modules.get("torch"), "__file__", None)
        root = os.path.join(os.path.dirname(torch), "") if torch else ""
        if root and path.startswith(root) and not path.startswith(f"{root}testing{os.sep}"):
            return PLUMBING
        if not role and (path.startswith(_STANDARD) or _is_delivered(path)):
            return INSTALLED
    return role


def _is_delivered(path: str) -> bool:
    """Return whether a package manager put a file elsewhere, as ``pip install --target`` does."""
    folder = os.path.dirname(path)
    if not os.path.isabs(folder):
        return False
    with contextlib.suppress(OSError):
        while os.path.exists(os.path.join(folder, "__init__.py")):
            folder = os.path.dirname(folder)
        if folder not in _delivered and len(_delivered) < _MOST_FOLDERS:
            with os.scandir(folder) as entries:
                first = itertools.islice(entries, _LIMIT)
                _delivered[folder] = any(entry.name.endswith(".dist-info") for entry in first)
    return _delivered.get(folder, False)


_STANDARD = os.path.join(os.path.dirname(os.__file__), "")

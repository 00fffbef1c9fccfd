"""The core finds the same call sites in frames as in their objects, and as Python does."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ncclscope import native
from ncclscope.model.sites import PLUMBING
from ncclscope.tracing import callsite

pytestmark = pytest.mark.skipif(native.core() is None, reason=native.why_not())

PROGRAM, PACKAGE, LIBRARY = (
    "/job/train.py",
    "/venv/lib/python3.11/site-packages/accelerate/ac.py",
    "/x/torch/distributed/distributed_c10d.py",
)
SEARCHES = sys.version_info >= (3, 11)
READS = sys.version_info[:2] in {(3, 11), (3, 12), (3, 13), (3, 14)} and not sys.abiflags

Found = tuple[Any, Any, Any]


@pytest.fixture
def core() -> Any:
    """Return the core, which knows how Python classifies code."""
    found = native.core()
    callsite.teach(found)
    return found


def made(source: str, path: str, **names: Any) -> dict[str, Any]:
    """Run a module that lies at a path, if anyone asks where it lies."""
    exec(compile(source, path, "exec"), names)
    return names


@pytest.fixture
def ask(core: Any) -> Callable[[], Found]:
    """Return a function that finds the site of whoever calls it in three ways."""
    source = "def ask():\n    return by(True), by(False), locate(getframe())[:2]\n"
    names = {"by": core.place_by, "locate": callsite.locate, "getframe": sys._getframe}
    function: Callable[[], Found] = made(source, LIBRARY, **names)["ask"]
    return function


def check(found: Found, *, is_known: bool = True) -> None:
    """Require that all ways agree; frames themselves have only what was found before."""
    in_frames, in_objects, by_python = found
    assert in_objects == (by_python if SEARCHES else None)
    assert in_frames == (by_python if is_known and READS else in_frames)
    assert in_frames in (None, by_python)


def test_frames_are_read_where_their_layout_is_known(core: Any) -> None:
    assert callsite._reads_frames is READS
    assert core.frames_agree() is READS


def test_a_place_is_known_once_it_was_found(ask: Callable[[], Found]) -> None:
    found = [ask() for _ in range(3)]
    assert found[0][0] is None
    for one in found[1:]:
        check(one)


CALLS = """
import functools
code = compile("found = ask()", "<string>", "exec")
def plain(ask): return ask()
def deeper(ask): return plain(ask)
def generated(ask): yield plain(ask)
def delegated(ask): yield from generated(ask)
def by_generator(ask): return next(delegated(ask))
def by_comprehension(ask): return [ask() for _ in "x"][0]
def by_expression(ask): return next(ask() for _ in "x")
def by_map(ask): return next(map(plain, [ask]))
def by_key(ask):
    seen = []
    sorted([ask], key=lambda ask: seen.append(ask()) or 0)
    return seen[0]
def by_partial(ask): return functools.partial(plain, ask)()
def by_exec(ask):
    names = {"ask": ask}
    exec(code, names)
    return names["found"]
def by_lambda(ask): return (lambda: ask())()
def by_class(ask):
    class Body:
        found = ask()
    return Body.found
def by_attribute(ask):
    class Asks:
        def __getattr__(self, name): return ask()
        def __add__(self, other): return ask()
        def __call__(self, *args): return ask()
        def __iter__(self): yield ask()
    asks = Asks()
    return [asks.x, asks + 1, asks(), next(iter(asks))][len(repr(ask)) % 4]
def by_cell(ask):
    kept = ask
    def inner(): return kept()
    return inner()
def by_raising(ask):
    try:
        raise ValueError
    except ValueError:
        with functools.singledispatch(plain) and open("/dev/null"):
            return ask()
async def awaited(ask): return ask()
async def awaits(ask): return await awaited(ask)
def by_coroutine(ask):
    try:
        awaits(ask).send(None)
    except StopIteration as ended:
        return ended.value
@functools.lru_cache(maxsize=0)
def cached(ask): return ask()
def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs): return function(*args, **kwargs)
    return wrapper
@decorated
@decorated
def by_decorators(ask): return cached(ask)
def by_callback(ask):
    seen = []
    callback(lambda: seen.append(ask()) or 0)()
    return seen[0]
"""
WAYS = [
    line.split("(")[0].split()[1]
    for line in CALLS.splitlines()
    if line.startswith("def ")
    and line.split("(")[0].split()[1] not in {"generated", "delegated", "decorated"}
]


@pytest.fixture
def ways() -> list[Callable[[Callable[[], Found]], Found]]:
    """Return functions of the program, of a package and of torch that pass a call on."""
    callback = ctypes.CFUNCTYPE(ctypes.c_int)
    modules = [made(CALLS, path, callback=callback) for path in (PROGRAM, PACKAGE, LIBRARY)]
    return [module[name] for module in modules for name in WAYS]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("path", [PROGRAM, PACKAGE, LIBRARY])
def test_each_way_to_call(way: str, path: str, ask: Callable[[], Found]) -> None:
    function = made(CALLS, path, callback=ctypes.CFUNCTYPE(ctypes.c_int))[way]
    found = [function(ask) for _ in range(2 + callsite._PATIENCE)]
    for one in found:
        check(one, is_known=False)
    check(found[-1])


def test_stacks_at_random(ask: Callable[[], Found], ways: list[Any]) -> None:
    draw = random.Random(1)
    for _ in range(300):
        call = ask
        for way in draw.choices(ways, k=draw.randint(1, 40)):
            call = functools.partial(way, call)
        for again in range(2 + callsite._PATIENCE):
            check(call(), is_known=again > callsite._PATIENCE)


def test_threads(ask: Callable[[], Found], ways: list[Any]) -> None:
    found: list[Found] = []

    def run(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(200):
            way, other = draw.choices(ways, k=2)
            found.append(way(functools.partial(other, ask)))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len(found) == 8 * 200
    for in_frames, in_objects, by_python in found:
        # Where a thread takes over while code is classified, the core leaves the call to Python.
        assert {in_frames, in_objects} <= {None, by_python}


def test_tasks(ask: Callable[[], Found]) -> None:
    async def task(number: int) -> list[Found]:
        found = []
        for _ in range(5):
            await asyncio.sleep(0)
            found.append(ask())
        return found

    async def run() -> list[list[Found]]:
        return await asyncio.gather(*(task(number) for number in range(5)))

    for found in asyncio.run(run()):
        for one in found[1:]:
            check(one)


def test_a_frame_that_has_not_begun(ask: Callable[[], Found]) -> None:
    """Collecting garbage while a function gets its cells: to Python its frame is not there yet."""
    found: list[Found] = []
    source = "def collected(phase, info):\n    if phase == 'start':\n        found.append(ask())\n"
    collected = made(source, LIBRARY, found=found, ask=ask)["collected"]
    source = "def cells(a, b, c):\n    return lambda: (a, b, c)\n"
    cells = made(source, PROGRAM)["cells"]
    threshold = gc.get_threshold()
    gc.callbacks.append(collected)
    kept = []
    try:
        gc.set_threshold(1)
        for _ in range(50):
            kept.append(cells(1, 2, 3))
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collected)
    assert found
    for one in found:
        check(one, is_known=False)


def test_code_in_the_place_of_other_code(ask: Callable[[], Found]) -> None:
    seen: set[int] = set()
    for number in range(300):
        path = LIBRARY if number % 2 else f"/job/m{number}.py"
        layer = made("def layer():\n    return ask()\n", path, ask=ask)["layer"]
        seen.add(id(layer.__code__))
        for _ in range(2):
            check(layer(), is_known=False)
        del layer
        gc.collect(0)
    assert len(seen) == 300


def test_code_that_is_not_kept_is_not_remembered(
    core: Any, ask: Callable[[], Found], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask()
    monkeypatch.setattr(callsite, "_LIMIT", len(callsite._codes))
    for number in range(20):
        layer = made("def layer():\n    return ask()\n", f"/job/p{number}.py", ask=ask)["layer"]
        for _ in range(3):
            assert layer()[:2] == (None, None)


def test_where_frames_disagree_their_objects_serve(
    core: Any, ask: Callable[[], Found], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Core:
        frames = staticmethod(core.frames)
        answers: Iterator[bool] = iter([True] * 3 + [False] * 20)
        given: list[Any]

        def frames_agree(self) -> bool:
            return next(self.answers)

        def places(self, *given: Any) -> None:
            self.given = list(given)

    monkeypatch.setattr(callsite, "_reads_frames", None)
    stub = Core()
    callsite.teach(stub)
    assert stub.given == [callsite.role_of, PLUMBING, False]


@pytest.mark.parametrize("version", [0x030A0DF0, 0x030D99F0, 0x030F02F0, 0x040000F0])
def test_a_layout_that_is_not_known(core: Any, version: int) -> None:
    assert not core.frames(version)
    assert core.frames_agree() is READS

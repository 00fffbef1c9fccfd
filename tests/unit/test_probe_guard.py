"""The barrier between the probes and the program."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from ncclscope.tracing import session
from ncclscope_patches.probes.probe import Patch


class Trouble(Exception):
    """What the probe under test raises."""


class Service:
    """In place of a user's class; counts what goes through."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def work(self, value: int, *, fail: bool = False) -> int:
        self.calls.append(value)
        if fail:
            raise KeyError(value)
        return value * 2

    @property
    def level(self) -> int:
        return 0

    @level.setter
    def level(self, value: int) -> None:
        self.calls.append(value)


class Observer(Patch):
    """Notes each call, or raises on request."""

    name = "observer"
    target = "service_of_a_test"
    supports = "this test"

    def __init__(self, trouble: str = "") -> None:
        super().__init__()
        self.trouble = trouble
        self.seen: list[Any] = []

    def install(self, module: Any) -> None:
        self.note("install")
        self.replace(module.Service, "work", self.before, self.after)
        self.replace(module.Service, "gone_in_this_version", self.before)
        self.watch_property(module.Service, "level", self.warned)

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        self.note("before")
        return int(args[1])

    def after(self, token: int, result: int) -> None:
        self.note("after")
        self.seen.append((token, result))

    def warned(self, service: Service, value: int) -> None:
        self.note("warned")
        self.seen.append(value)

    def note(self, place: str) -> None:
        if place == self.trouble:
            raise Trouble(place)


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    module = types.ModuleType("service_of_a_test")
    members = {name: value for name, value in vars(Service).items() if name != "__dict__"}
    module.Service = type("Service", (), members)  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the warnings of this process, each of which it prints once."""
    warned: list[str] = []
    monkeypatch.setattr(session, "warn_once", lambda topic, message: warned.append(message))
    return warned


def test_call_goes_through_and_is_seen(module: Any) -> None:
    observer = Observer()
    observer.apply()
    service = module.Service()

    assert service.work(3) == 6
    assert (service.calls, observer.seen) == ([3], [(3, 6)])


@pytest.mark.parametrize("place", ["before", "after"])
def test_fault_leaves_the_call_as_it_is_and_ends_the_probe(
    module: Any, warnings: list[str], place: str
) -> None:
    observer = Observer(place)
    observer.apply()
    service = module.Service()

    assert [service.work(3), service.work(4)] == [6, 8]
    assert service.calls == [3, 4]
    assert (observer.active, len(warnings)) == (False, 1)
    assert f"Trouble: {place}" in warnings[0]


def test_fault_in_a_watched_property_leaves_the_assignment(
    module: Any, warnings: list[str]
) -> None:
    observer = Observer("warned")
    observer.apply()
    service = module.Service()
    service.level = 5
    service.level = 6

    assert (service.calls, len(warnings)) == ([5, 6], 1)


def test_fault_at_installation_leaves_everything_as_it_was(
    module: Any, warnings: list[str]
) -> None:
    before = dict(vars(module.Service))
    Observer("install").apply()

    assert dict(vars(module.Service)) == before
    assert len(warnings) == 1


def test_exception_of_the_call_arrives_unchanged(module: Any) -> None:
    observer = Observer()
    observer.apply()

    with pytest.raises(KeyError) as caught:
        module.Service().work(3, fail=True)

    assert caught.value.args == (3,)
    assert caught.value.__context__ is None
    assert observer.seen == []


def test_exception_after_a_fault_has_nothing_of_the_fault(module: Any, warnings: list[str]) -> None:
    Observer("before").apply()

    with pytest.raises(KeyError) as caught:
        module.Service().work(3, fail=True)

    assert caught.value.__context__ is None


def test_scope_is_left_when_the_call_raises(module: Any) -> None:
    observer = Observer()
    left: list[Any] = []
    observer.active = True
    guarded = observer.guard_scope(module.Service.work, lambda args, kwargs: "entered", left.append)

    with pytest.raises(KeyError):
        guarded(module.Service(), 3, fail=True)

    assert left == ["entered"]


@pytest.mark.parametrize("place", ["enter", "leave"])
def test_fault_of_a_scope_leaves_the_call_as_it_is(
    module: Any, warnings: list[str], place: str
) -> None:
    observer = Observer()
    observer.active = True

    def trouble(*_: Any) -> Any:
        raise Trouble

    enter = trouble if place == "enter" else lambda args, kwargs: True
    guarded = observer.guard_scope(module.Service.work, enter, trouble)
    service = module.Service()

    assert [guarded(service, 3), guarded(service, 4)] == [6, 8]
    assert service.calls == [3, 4]
    assert len(warnings) == 1


def test_applying_twice_wraps_once(module: Any) -> None:
    first, second = Observer(), Observer()
    for observer in (first, first, second):
        observer.apply()
    module.Service().work(3)

    assert (first.seen, second.seen) == ([(3, 6)], [])


def test_reverting_puts_the_original_back(module: Any) -> None:
    before = dict(vars(module.Service))
    observer = Observer()
    observer.apply()
    assert dict(vars(module.Service)) != before
    observer.revert()

    assert dict(vars(module.Service)) == before


def test_reverting_leaves_what_somebody_else_put_on_top(module: Any) -> None:
    observer = Observer()
    observer.apply()
    module.Service.work = other = lambda self, value: value
    observer.revert()

    assert module.Service.work is other


def test_nothing_happens_without_the_target(module: Any) -> None:
    del sys.modules[module.__name__]
    observer = Observer()
    observer.apply()
    sys.modules[module.__name__] = module
    observer.apply()
    module.Service().work(3)

    assert observer.seen == [(3, 6)]


def test_warning_that_cannot_be_printed_harms_nobody(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(topic: str, message: str) -> None:
        raise ValueError("I/O operation on closed file")

    monkeypatch.setattr(session, "warn_once", closed)
    Observer("before").apply()

    assert module.Service().work(3) == 6

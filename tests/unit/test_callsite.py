"""Which line of the program posted a call."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclscope.tracing import callsite
from tests.rings import read, tracer_in


def here() -> str:
    """Returns the call site of whoever calls this."""
    found = callsite.locate(sys._getframe(1))
    assert found is not None
    return callsite.describe(found[2], found[1])


def line_of(text: str) -> int:
    """Returns the number of the one line of this file that ends with a text."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if line.endswith(text))
    return number


def test_file_line_and_function() -> None:
    site = here()  # marked
    assert site == f"test_callsite.py:{line_of('# marked')} test_file_line_and_function"


def test_lines_of_one_function_are_told_apart() -> None:
    one, other = here(), here()
    assert one == other  # on one line
    another = here()
    assert another != one


def run(source: str, name: str, **names: Any) -> dict[str, Any]:
    """Runs a module that lies at the given path, if anyone asks where it lies."""
    names["here"] = here
    exec(compile(source, name, "exec"), names)
    return names


@pytest.mark.parametrize(
    "name",
    [
        "/x/torch/distributed/distributed_c10d.py",
        "/x/torch/_ops.py",
        "/x/torch/nn/modules/module.py",
        "/x/vllm/distributed/parallel_state.py",
        "/x/vllm/distributed/device_communicators/pynccl.py",
        "/x/ncclscope/tracing/tracer.py",
        "/x/ncclscope_patches/pynccl.py",
        "/usr/lib/python3.11/contextlib.py",
        "/usr/lib/python3.11/functools.py",
    ],
)
def test_plumbing_is_passed_over(name: str) -> None:
    plumbing = run("def post(inner=None):\n    return inner() if inner else here()\n", name)["post"]
    program = run("def layer():\n    return post(post)\n", "/job/model.py", post=plumbing)["layer"]
    assert program() == "model.py:2 layer"


@pytest.mark.parametrize(
    "name",
    ["/x/torch/nn/functional.py", "/x/vllm/model_executor/layers/moe.py", "/job/functools2.py"],
)
def test_what_only_looks_like_plumbing_is_not(name: str) -> None:
    program = run("def layer():\n    return here()\n", name)["layer"]
    assert program() == f"{Path(name).name}:2 layer"


def test_decorators_and_context_managers_are_passed_over() -> None:
    @contextlib.contextmanager
    def manager() -> Iterator[str]:
        yield "x"

    @functools.singledispatch
    def dispatch(value: object) -> str:
        found = callsite.locate(sys._getframe(1))
        assert found is not None
        return callsite.describe(found[2], found[1])

    with manager():
        site = dispatch(5)  # dispatched
    assert site == (
        f"test_callsite.py:{line_of('# dispatched')} "
        "test_decorators_and_context_managers_are_passed_over"
    )


def test_where_all_is_plumbing_there_is_no_site() -> None:
    assert callsite.locate(None) is None
    code = compile("x = frame()", "/x/torch/distributed/run.py", "exec")
    seen: list[types.FrameType] = []
    exec(code, {"frame": lambda: seen.append(sys._getframe(1))})

    class End:
        """A frame with nothing around it."""

        f_code = seen[0].f_code
        f_back = None

    assert callsite.locate(End()) is None  # type: ignore[arg-type]


def test_a_call_that_goes_over_several_lines() -> None:
    source = "def layer():\n    return (\n        here(\n        )\n    )\n"
    assert run(source, "/job/model.py")["layer"]() == "model.py:3 layer"


def test_lambdas_comprehensions_and_methods_have_names() -> None:
    class Layer:
        def forward(self) -> str:
            return here()  # forward

    assert Layer().forward() == f"test_callsite.py:{line_of('# forward')} forward"
    assert (lambda: here())().endswith(" <lambda>")
    assert run("site = here()\n", "/job/train.py")["site"] == "train.py:1 <module>"


def test_code_that_is_gone_is_not_mistaken_for_code_that_took_its_place() -> None:
    # An id is given out again, so whatever is known by its id has to stay alive.
    sites = set()
    for number in range(300):
        name = f"/x/torch/distributed/m{number}.py" if number % 2 else f"/job/m{number}.py"
        layer = run("def layer():\n    return here()\n", name)["layer"]
        sites.add(layer())
        del layer
        gc.collect(0)
    expected = {f"m{number}.py:2 layer" for number in range(0, 300, 2)}
    assert expected <= sites
    assert all(site.startswith("test_callsite.py") for site in sites - expected)


def test_a_program_that_makes_code_all_the_time_does_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(callsite, "_LIMIT", len(callsite._codes) + 10)
    for number in range(100):
        layer = run("def layer():\n    return here()\n", f"/job/n{number}.py")["layer"]
        assert layer() == f"n{number}.py:2 layer"
    assert len(callsite._codes) <= callsite._LIMIT
    assert len(callsite.plumbing) == len(callsite._codes)


def test_the_tracer_finds_its_caller(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    for _ in range(2):
        tracer.record(comm, "barrier")  # recorded
    tracer.record(comm, "barrier", site="elsewhere.py:1 f")

    calls = read(tracer.path).logs["k"].span(1, 4)

    assert [call.site for call in calls] == [
        *[f"test_callsite.py:{line_of('# recorded')} test_the_tracer_finds_its_caller"] * 2,
        "elsewhere.py:1 f",
    ]

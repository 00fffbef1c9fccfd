"""Which line of the program posted a call."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ncclscope.tracing
import ncclscope_patches.probes.probe
from ncclscope.model import Call
from ncclscope.model.sites import Sites
from ncclscope.model.sites import read as read_sites
from ncclscope.readers.jsonl.trace import read_trace, write_trace
from ncclscope.tracing import callsite
from tests.support.rings import read, tracer_in


def places() -> Sites:
    """Return the call site of whoever calls this, and the user's."""
    return places_of(sys._getframe(1))


def places_of(frame: Any) -> Sites:
    found = callsite.locate(frame)
    assert found is not None
    return read_sites(callsite.describe(found[2], found[1]))


def here() -> str:
    """Return the call site of whoever calls this, in short."""
    site = places_of(sys._getframe(1)).site
    assert site is not None
    return site


def line_of(text: str) -> int:
    """Return the number of the one line of this file that ends with a text."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if line.endswith(text))
    return number


def test_file_line_and_function() -> None:
    site = here()  # marked
    assert site == f"test_callsite.py:{line_of('# marked')} test_file_line_and_function"


def test_a_function_that_torch_compiled_has_the_line_of_its_caller() -> None:
    """Its code, which torch wrote, calls a graph and has no lines but that of the definition."""
    namespace = {"__compiled_fn_1": places}
    exec(compile("def step():\n return __compiled_fn_1()", __file__, "exec"), namespace)
    found = namespace["step"]()  # the caller
    assert found.site is not None
    assert found.site.endswith(" step")
    assert found.user is not None
    assert f":{line_of('# the caller')} test_a_function_that_torch" in found.user


def test_lines_of_one_function_are_distinguished() -> None:
    one, other = here(), here()
    assert one == other  # on one line
    another = here()
    assert another != one


def run(source: str, name: str, **names: Any) -> dict[str, Any]:
    """Run a module that lies at the given path, if anyone asks where it lies."""
    names |= {"here": here, "places": places}
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
        "torch/distributed/distributed_c10d.py",
        "./torch/nn/functional.py",
        "/x/site-packages/torch/optim/optimizer.py",
        "/tmp/torchinductor_root/7h/c7h466el5s5sxwfgv7m4bn5qdyyj7mf4ypfaoho4cdlmwjazl3gj.py",
        "<eval_with_key>.12",
        os.path.join(os.path.dirname(ncclscope.tracing.__file__), "tracer.py"),
        os.path.join(os.path.dirname(ncclscope_patches.__file__), "noting.py"),
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
    [
        "/x/torch/nn/functional.py",
        "/x/vllm/model_executor/layers/moe.py",
        "/job/functools2.py",
        "/home/user/torch/train.py",
        "/home/user/ncclscope/train.py",
        "/home/user/ncclscope_patches/train.py",
    ],
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
        return places_of(sys._getframe(1)).site or ""

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


# --- the user's own line -------------------------------------------------------------------


def installed(
    source: str, name: str = "/venv/lib/python3.11/site-packages/accelerate/ac.py"
) -> Any:
    """Return the function ``gather`` of a module of an installed package."""
    return run(source, name)["gather"]


def test_the_users_line_is_found_above_an_installed_package() -> None:
    gather = installed("def gather():\n    return inner()\ndef inner():\n    return places()\n")
    program = run("def step():\n    return gather()\n", "/job/train.py", gather=gather)["step"]

    found = program()

    assert found.site == "ac.py:4 inner"
    assert found.full == "/venv/lib/python3.11/site-packages/accelerate/ac.py:4 inner"
    assert found.user == "/job/train.py:2 step"


def test_one_installed_line_is_as_many_sites_as_it_has_users() -> None:
    gather = installed("def gather():\n    return places()\n")
    source = "def step():\n    return gather()\ndef save():\n    return gather()\n"
    program = run(source, "/job/train.py", gather=gather)

    assert [program[name]().user for name in ("step", "save")] == [
        "/job/train.py:2 step",
        "/job/train.py:4 save",
    ]


def test_a_site_of_the_users_own_has_no_other() -> None:
    assert run("def step():\n    return places()\n", "/job/train.py")["step"]() == Sites(
        "train.py:2 step", "/job/train.py:2 step", None
    )


@pytest.mark.parametrize("name", [contextlib.__file__.replace("contextlib", "runpy"), "<string>"])
def test_the_standard_library_is_installed(name: str) -> None:
    gather = installed("def gather():\n    return places()\n", name)
    program = run("def step():\n    return gather()\n", "/job/train.py", gather=gather)["step"]
    assert program().user == "/job/train.py:2 step"


class Stack:
    """A frame of a stack that is all installed, as an engine's worker has it, and counts reads."""

    def __init__(self, depth: int, samples: list[int]) -> None:
        name = f"/venv/lib/python3.11/site-packages/vllm/v1/worker_{depth}.py"
        self.f_code = _CODES.setdefault(name, compile("pass", name, "exec"))
        self.f_lasti = 2
        self.samples = samples
        self.below = Stack(depth - 1, samples) if depth else None

    @property
    def f_back(self) -> Any:
        self.samples.append(1)
        return self.below


_CODES: dict[str, types.CodeType] = {}


def test_where_all_frames_are_installed_the_search_ends() -> None:
    samples: list[int] = []
    frame: Any = Stack(60, samples)
    for _ in range(20):
        assert callsite.locate(frame) is not None
    assert 0 < len(samples) <= callsite._PATIENCE * (callsite._DEPTH + 1)

    samples.clear()
    place = callsite.locate(frame)

    assert not samples
    assert place is not None
    assert place[1] == 2


def test_a_record_says_both_lines_with_their_paths(rings: Path, tmp_path: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k", created_at="/job/train.py:1 main")
    post = functools.partial(tracer.record, comm, "barrier")
    source = "def gather(post):\n    post()\n"
    gather = installed(source, "/x/site-packages/accelerate/b.py")
    program = run("def main(post):\n    gather(post)\n    post()\n", "/job/train.py", gather=gather)
    program["main"](post)

    rank = read(tracer.path)
    write_trace(rank, tmp_path / "0.jsonl")

    for one in (rank, read_trace(tmp_path / "0.jsonl")):
        log = one.logs["k"]
        assert log.communicator.created_at == "/job/train.py:1 main"
        assert log.communicator.to_dict()["created_at"] == "/job/train.py:1 main"
        framework, own = log.span(1, 3)
        check_both(framework)
        assert (own.site, own.user_site) == ("train.py:3 main", None)
        assert own.to_dict()["site"] == "/job/train.py:3 main"
        assert log.sites(1, 3) == ["b.py:2 gather", "train.py:3 main"]


def check_both(call: Call) -> None:
    assert call.site == "b.py:2 gather"
    document = call.to_dict()
    assert document["site"] == "/x/site-packages/accelerate/b.py:2 gather"
    assert document["user_site"] == "/job/train.py:2 main"
    assert document["frame"] == {
        "file": "/x/site-packages/accelerate/b.py",
        "line": 2,
        "function": "gather",
    }
    assert document["user_frame"] == {"file": "/job/train.py", "line": 2, "function": "main"}


def test_older_rings_and_traces_have_short_sites(rings: Path) -> None:
    tracer = tracer_in(rings)
    tracer.record(tracer.communicator("k"), "barrier", site="train.py:31 step")
    (call,) = read(tracer.path).logs["k"].span(1, 2)
    assert (call.site, call.user_site) == ("train.py:31 step", None)
    assert call.to_dict()["site"] == "train.py:31 step"
    assert call.to_dict()["frame"] == {"file": "train.py", "line": 31, "function": "step"}


def test_a_long_path_keeps_its_end() -> None:
    name = f"/{'deep/' * 100}train.py"
    found = run("def step():\n    return places()\n", name)["step"]()
    assert found.site == "train.py:2 step"
    assert len(found.full) < 200
    assert found.full.endswith("/deep/train.py:2 step")


def test_many_long_sites_leave_room_for_communicators(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    for number in range(1, 1001):
        tracer.record(comm, "barrier", site=f"/{'deep/' * 20}file_{number}.py:{number} step")
    tracer.communicator("another", ranks=range(64))

    rank = read(tracer.path)

    calls = rank.logs["k"].span(1, 1001)
    kinds = ["full" if "/" in (call.full_site or "") else "short" for call in calls if call.site]
    assert "another" in rank.logs
    assert calls[0].full_site == f"/{'deep/' * 20}file_1.py:1 step"
    assert [call.site for call in calls][:600] == [f"file_{n}.py:{n} step" for n in range(1, 601)]
    assert kinds == sorted(kinds), "first in full, then in short, then not at all"
    assert set(kinds) == {"full", "short"}


def test_packages_that_pip_put_into_another_folder_are_not_the_users(tmp_path: Path) -> None:
    inner = tmp_path / "target" / "library" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        (folder / "__init__.py").touch()
    (tmp_path / "target" / "library-1.0.dist-info").mkdir()
    (tmp_path / "project").mkdir()
    source = "def post(function):\n    return function()"
    delivered = run(source, str(inner / "ops.py"))["post"]
    own = run(source, str(tmp_path / "project" / "train.py"))["post"]

    found = own(functools.partial(delivered, lambda: places_of(sys._getframe(1))))

    assert found.full is not None
    assert found.full.endswith("library/inner/ops.py:2 post")
    assert found.user is not None
    assert found.user.endswith("project/train.py:2 post")

"""A vLLM plugin for measurements: something is on for some steps and off for the next, and so on.

Two servers are never quite alike: where their processes run and what their memory looks like
costs more or less than what is to be measured. Here one server is both. Ranks that share experts
make the same steps, so they switch at the same one, without a word between them.

``NCCLSCOPE_TEST_ALTERNATE`` says what is switched:

- ``tracing``: NCCL's profiler plugin and all probes of a worker, or only those probes that
  ``NCCLSCOPE_TEST_ALTERNATE_ONLY`` names.
- ``parts``: the same, in turns by ``WAYS``: what records NCCL's calls apart from the rest.
- ``progress``: the same where the GPU counts. CUDA graphs are captured twice, with markers in them
  and without. ``between`` has all markers where the next kernel waits for them, ``beside`` has none
  there.
- ``dispatch``: ``NCCLSCOPE_VLLM_DISPATCH`` against vLLM's own, which takes a server without CUDA
  graphs, as they hold what was captured.
- ``nothing``: what comes out then is what the way of measuring makes up.
- ``asking``: nothing is switched here. Steps are classified by whether all their requests ask for
  their routed experts, or none.

Of each two stretches of steps one is on (with ``parts``, each way has one), in an order drawn from
``NCCLSCOPE_TEST_ALTERNATE_SEED``: a load is the same each time, and with it where its longer steps
are. ``NCCLSCOPE_TEST_ALTERNATE_DIR`` is where each worker writes how long its steps took, in
nanoseconds from the beginning of one to that of the next.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PERIOD = 8
"""Steps before it is switched: few, as a load drifts within seconds."""
SETTLING = 1
"""Steps after a switch that are not counted."""
PAUSE_NS = 200_000_000
"""Nanoseconds of a step that has waited for a request."""
WRITE_EVERY = 8 * PERIOD
COUNTED = ("progress", "between", "beside")
"""Tracing with the calls counted by the GPU."""
WAYS = (
    (False, False, False),
    (True, False, False),
    (False, True, False),
    (True, True, False),
    (True,) * 3,
)
"""Whether pynccl's probe, NCCL's plugin, and all other probes record, in each way of ``parts``."""


Kept = tuple[Any, str, dict[Any, Any]]
"""Owner and attribute of captured graphs, and the graphs."""


class Alternation:
    """What is switched, and how long steps took.

    Args:
        what: See above.
        directory: Where to write that.
    """

    def __init__(self, what: str, directory: Path) -> None:
        self.what = what
        self.directory = directory
        self.way = 1
        """0 while it is off."""
        self.order = [1, 0]
        self.draw = random.Random(int(os.environ.get("NCCLSCOPE_TEST_ALTERNATE_SEED", "0")))
        self.steps = 0
        self.began = 0
        self.last: tuple[int, bool] | None = None
        self.taken: list[tuple[int, int, int]] = []
        self.patches: list[Any] = []
        self.plugin: Any = None
        self.is_prepared = False
        self.graphs: tuple[list[Kept], list[Kept]] = ([], [])
        """Off and on."""
        self.asking: set[str] = set()

    def classify(self, output: Any) -> bool:
        """Note which requests of a step ask; return whether all of them do, or none."""
        for request in output.scheduled_new_reqs:
            extra = getattr(request.sampling_params, "extra_args", None) or {}
            if extra.get("return_routed_experts"):
                self.asking.add(request.req_id)
        own = [request in self.asking for request in output.num_scheduled_tokens]
        self.asking.difference_update(output.finished_req_ids)
        alike = len(set(own)) == 1
        if alike:
            self.way = int(own[0])
        return alike

    def _prepare(self) -> None:
        if self.is_prepared:
            return
        self.is_prepared = True
        if self.what in ("tracing", "parts", *COUNTED):
            from ncclscope_patches import registry

            only = os.environ.get("NCCLSCOPE_TEST_ALTERNATE_ONLY", "").split(",")
            self.patches = [
                patch for patch in registry.active() if only == [""] or patch.name in only
            ]
            if not self.patches:
                raise RuntimeError("nothing is traced here")
        elif self.what == "dispatch":
            _offer_both(self)

    def switch(self, way: int) -> None:
        """Do everything from here on in this way; 0 is off."""
        self._prepare()
        self.way = way
        calls, plugin, rest = WAYS[way] if self.what == "parts" else (bool(way),) * 3
        for patch in self.patches:
            patch.active = calls if patch.name == "pynccl" else rest
        if self.plugin is not None:
            self.plugin.set(plugin)
        for owner, name, graphs in self.graphs[bool(way)]:
            setattr(owner, name, graphs)

    def capture_twice(self, capture: Callable[[], int], runner: Any) -> int:
        """Capture vLLM's graphs while it is on, and again while it is off."""
        size = capture()
        on = _set_aside(runner)
        self.switch(0)
        capture()
        self.graphs = _set_aside(runner), on
        self.switch(1)
        return size

    def step(self, tokens: int, output: Any = None) -> None:
        """Note that a step begins, and switch before it, where it is time to."""
        now = time.perf_counter_ns()
        if self.last is not None:
            passed, (before, counts) = now - self.began, self.last
            if counts and passed < PAUSE_NS:
                self.taken.append((self.way, before, passed))
        self.steps += 1
        self._prepare()
        place = self.steps % PERIOD
        counts = place >= SETTLING
        if self.what == "asking":
            counts = output is not None and self.classify(output)
        elif place == 0:
            if not self.order:
                self.order = list(range(len(WAYS) if self.what == "parts" else 2))
                self.draw.shuffle(self.order)
            self.switch(self.order.pop())
        if self.steps % WRITE_EVERY == 0:
            # Workers may be forks of the process that made this object.
            path = self.directory / f"{os.getpid()}.json"
            draft = path.with_suffix(".draft")
            draft.write_text(json.dumps(self.taken))
            draft.rename(path)
        self.last = tokens, counts
        self.began = time.perf_counter_ns()


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``."""
    what = os.environ.get("NCCLSCOPE_TEST_ALTERNATE")
    if not what:
        return
    from vllm.v1.worker.gpu_worker import Worker

    if getattr(Worker.execute_model, "alternating", False):
        return
    alternation = Alternation(what, Path(os.environ["NCCLSCOPE_TEST_ALTERNATE_DIR"]))
    if what in ("tracing", "parts") and "NCCLSCOPE_TEST_ALTERNATE_ONLY" not in os.environ:
        _switch_plugin(alternation, Worker)
    if what in ("between", "beside"):
        _put_markers(in_stream=what == "between")
    if what in COUNTED:
        _capture_twice(alternation)
    execute, dummy = Worker.execute_model, Worker.execute_dummy_batch

    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        tokens = int(scheduler_output.total_num_scheduled_tokens)
        if tokens:
            alternation.step(tokens, scheduler_output)
        return execute(self, scheduler_output, *args, **kwargs)

    def execute_dummy_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        alternation.step(0)
        return dummy(self, *args, **kwargs)

    execute_model.alternating = True  # type: ignore[attr-defined]
    Worker.execute_model = execute_model
    Worker.execute_dummy_batch = execute_dummy_batch


def _switch_plugin(alternation: Alternation, worker: Any) -> None:
    """Let NCCL load the plugin that can be switched, which it does in this method."""
    from benchmarks.gpu.switching import PluginSwitch

    own = worker.init_device

    def init_device(self: Any) -> Any:
        alternation.plugin = PluginSwitch()
        return own(self)

    worker.init_device = init_device


def _capture_twice(alternation: Alternation) -> None:
    """Make both of vLLM's model runners capture all graphs twice."""
    from vllm.v1.worker import gpu_model_runner
    from vllm.v1.worker.gpu import model_runner

    def replace(cls: Any) -> None:
        own = cls.capture_model

        def capture_model(self: Any) -> int:
            return alternation.capture_twice(lambda: own(self), self)

        cls.capture_model = capture_model

    replace(gpu_model_runner.GPUModelRunner)
    replace(model_runner.GPUModelRunner)


def _put_markers(in_stream: bool) -> None:
    """Put all markers of graphs into the stream, or all beside it."""
    from ncclscope.tracing.device.graph_markers import Placement

    Placement.in_stream = lambda self, capture: in_stream  # type: ignore[method-assign]


def _set_aside(runner: Any) -> list[Kept]:
    """Take away all captured graphs, so that it looks as if there were none."""
    from vllm.compilation.cuda_graph import CUDAGraphWrapper

    places = [(each, "concrete_cudagraph_entries") for each in CUDAGraphWrapper._all_instances]
    manager = getattr(runner, "cudagraph_manager", None)
    if manager is not None:
        places.append((manager, "graphs"))
    found = []
    for owner, name in places:
        found.append((owner, name, getattr(owner, name)))
        setattr(owner, name, {})
    return found


def _offer_both(alternation: Alternation) -> None:
    """Make each dispatcher behave as vLLM's own while it is off."""
    from vllm.distributed.device_communicators import all2all

    padded = all2all.AgRsAll2AllManager
    stock = padded.__mro__[1]
    if stock.__name__ != "AgRsAll2AllManager":
        raise RuntimeError("NCCLSCOPE_VLLM_DISPATCH has not taken hold")

    def offer(name: str) -> None:
        ours, own = getattr(padded, name), getattr(stock, name)

        def either(self: Any, *args: Any, **kwargs: Any) -> Any:
            return (ours if alternation.way else own)(self, *args, **kwargs)

        setattr(padded, name, either)

    for name in ("dispatch", "dispatch_router_logits", "combine"):
        offer(name)

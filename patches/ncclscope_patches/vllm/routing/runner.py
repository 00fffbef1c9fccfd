"""The worker's part: capture what routers choose, and send the rows with the step's output.

A step without requests that opted in costs only the check of an empty set.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from ncclscope.errors import UsageError
from ncclscope.tracing import session
from ncclscope_patches.routed_experts.capture import LayerCapture
from ncclscope_patches.routed_experts.deltas import RequestRows
from ncclscope_patches.routed_experts.layers import RoutedLayers
from ncclscope_patches.routed_experts.layouts import BatchLayout, BatchRows, capture_own
from ncclscope_patches.routed_experts.requests import RoutingRequest
from ncclscope_patches.routed_experts.support import refuse_unsupported
from ncclscope_patches.routed_experts.transfer import Flight
from ncclscope_patches.routed_experts.worker import RoutedExpertsWorker
from ncclscope_patches.vllm import group_mode
from ncclscope_patches.vllm.routing import configuration, self_test
from ncclscope_patches.vllm.routing.wrapping import attempt, wrap

DELTA = "ncclscope_routing"
"""Attribute of a ``ModelRunnerOutput`` that holds its :class:`StepDelta`."""
_ROUTING = "_ncclscope_routing"
_FLIGHT = "_ncclscope_flight"
# If the capture of a step fails, its tokens are missing, and the next step is captured again. A
# rank must not stop capturing alone, since the ranks of a replica gather their shards together.
LOST = "the routing of a step was not captured"
_SHARDS = "routing is not gathered under sequence parallelism"


def extend_runner(module: Any) -> None:
    """Add the capture to vLLM's model runner and to its asynchronous output."""
    runner = module.GPUModelRunner
    wrap(runner, "load_model", load_model)
    wrap(runner, "execute_model", _execute_model)
    wrap(runner, "_model_forward", _model_forward)
    wrap(runner, "sample_tokens", sample_tokens)
    wrap(module.AsyncGPUModelRunnerOutput, "get_output", get_output)


def extend_cpu_runner(module: Any) -> None:
    """Add the capture to the CPU worker's own way of loading a model."""
    wrap(module.CPUModelRunner, "load_model", load_model)


def extend_worker(module: Any) -> None:
    """Let the engine ask a worker for the shape of its routing, and for its layers' places."""
    module.Worker.ncclscope_routing_shape = _routing_shape
    module.Worker.ncclscope_routing_places = _routing_places


def opts_in(sampling_params: Any) -> bool:
    """Return whether a request opted in; the server has already validated its arguments."""
    extra = getattr(sampling_params, "extra_args", None)
    if not extra:
        return False
    try:
        return RoutingRequest.parse(extra).wanted
    except UsageError:
        return False


class RunnerRouting:
    """Capture and transfer of one model runner.

    Args:
        runner: vLLM's model runner, with its model loaded.
        gathers: Whether the ranks of a replica gather shards of a sequence; all do, or none.

    Raises:
        UsageError: Its layers differ in shape, or some do not expose their routing.
    """

    _gathers = True

    def __init__(self, runner: Any, *, gathers: bool = True) -> None:
        from vllm.forward_context import get_forward_context

        self._context = get_forward_context
        self._gathers = gathers
        config = runner.vllm_config
        found = list(_routing_modules(runner.get_model()))
        deployment = configuration.deployment_of(config)
        hidden = tuple(name for name, module in found if _hides(module))
        refuse_unsupported(type(deployment)(**{**vars(deployment), "hidden_routing": hidden[:3]}))
        layers = RoutedLayers(name for name, _ in found)
        top_k = {module.router.top_k for _, module in found}
        if len(top_k) > 1:
            raise UsageError(f"layers that choose {sorted(top_k)} experts have no common shape")
        model = config.model_config
        self_test.check_routers(found, model.get_hidden_size(), model.dtype)
        tensor_rank = _tensor_group().rank_in_group
        self.parallel = config.parallel_config
        buffer = layers.buffer(
            top_k=top_k.pop(),
            experts=deployment.experts,
            max_tokens=_most_tokens(runner),
            device=runner.device,
        )
        self.worker = RoutedExpertsWorker(
            buffer, depth=configuration.places(config), sends=tensor_rank == 0
        )
        for number, (_, module) in enumerate(found):
            sink = functools.partial(self._capture, buffer.layer(number), module)
            module.router.set_capture_fn(sink)
        self.places = tuple(_place(name, module) for name, module in found)
        self._tensor_rank = tensor_rank
        self._opted: set[str] = set()
        self._scheduled: Any = None
        self._flight: Flight | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of layers, chosen experts per token (top k), and experts."""
        shape = self.worker.capture.shape
        return shape.layers, shape.top_k, shape.experts

    def begin(self, scheduled: Any) -> None:
        """Note which requests opted in, and the scheduling of the coming step."""
        self._opted -= scheduled.finished_req_ids
        for new in scheduled.scheduled_new_reqs:
            if opts_in(new.sampling_params):
                self._opted.add(new.req_id)
        self._scheduled = scheduled if self._opted else None

    def end(self) -> None:
        """Forget the step's scheduling; its rows may still be in flight."""
        self._scheduled = None

    @property
    def expects(self) -> bool:
        """Whether the step is scheduled while requests that opted in are known."""
        return self._scheduled is not None

    def scheduled_tokens(self, request: str) -> int:
        """Return the number of rows of a request in the step; 0 if it did not opt in."""
        if self._scheduled is None or request not in self._opted:
            return 0
        return int(self._scheduled.num_scheduled_tokens.get(request, 0))

    def rows(self, requests: list[str]) -> list[RequestRows]:
        """Return the rows of requests that opted in, of the batch as it will be computed.

        Args:
            requests: Ids, in the order of the batch.
        """
        if self._scheduled is None:
            return []
        counts, rows, first = self._scheduled.num_scheduled_tokens, [], 0
        for request in requests:
            count = counts.get(request, 0)
            if count and request in self._opted:
                rows.append(RequestRows(request, first, count))
            first += count
        return rows

    def open(self, rows: list[RequestRows]) -> bool:
        """Begin to capture, right before the forward pass; return False if there are no rows."""
        if rows:
            self.worker.begin_step(rows)
        return bool(rows)

    def close(self) -> None:
        """Start copying the step's rows, right after the forward pass."""
        self._flight = self.worker.end_step()

    def take(self) -> Flight | None:
        """Return the rows of the step whose output is being created."""
        flight, self._flight = self._flight, None
        return flight

    def _capture(self, sink: LayerCapture, module: Any, topk_ids: torch.Tensor) -> None:
        """Store what a router chose; vLLM calls it inside the forward pass."""
        if not sink.buffer.writes:
            return
        try:
            batch = self._batch()
            if batch is None:
                sink(topk_ids)
            else:
                layout = _known_layout(module, batch)
                gather = _gather if self._gathers else None
                capture_own(sink, topk_ids, batch, gather, layout)
        except Exception as error:
            # Not written, so these tokens are missing.
            session.warn_once(_ROUTING, f"routing of a layer was not captured: {error}")

    def _batch(self) -> BatchRows | None:
        """Return the numbers of rows of all replicas; None if there is one replica."""
        metadata = self._context().dp_metadata
        if metadata is None:
            return None
        tokens = tuple(metadata.num_tokens_across_dp_cpu.tolist())
        tp = self.parallel.tensor_parallel_size
        sizes = tuple(getattr(metadata, "local_sizes", None) or ())
        shared_out = tp > 1 and len(sizes) == len(tokens) * tp
        return BatchRows(
            tokens,
            dp_rank=self.parallel.data_parallel_rank,
            tp=tp,
            tp_rank=self._tensor_rank,
            sequence_parallel=shared_out,
            shards=sizes if shared_out else (),
        )


def _routing_modules(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the modules with their own router, in the model's order."""
    from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter

    seen = set()
    for name, module in model.named_modules():
        router = getattr(module, "router", None)
        if isinstance(router, BaseRouter) and id(router) not in seen:
            seen.add(id(router))
            yield name, module


def _place(name: str, module: Any) -> int:
    """Return the number of a layer among all of the model's."""
    number = getattr(module, "layer_id", None)
    if number is None:
        number = next(int(word) for word in name.split(".") if word.isdecimal())
    return int(number)


def _hides(module: Any) -> bool:
    """Return whether one kernel both chooses the experts and runs them."""
    return bool(getattr(module, "is_monolithic", False))


def _known_layout(module: Any, batch: BatchRows) -> BatchLayout | None:
    """Return the layout of a router's rows, if vLLM's code determines it.

    From the number of rows alone, ranks of a replica could infer different layouts, and one of them
    would wait for the others in a collective.
    """
    gathered = getattr(module, "do_naive_dispatch_combine", None)
    if gathered is None:
        return None
    if batch.sequence_parallel:
        return BatchLayout.GATHERED_SHARDS if gathered else BatchLayout.SEQUENCE_SHARD
    return BatchLayout.CONCATENATED if gathered else BatchLayout.OWN


def _tensor_group() -> Any:
    from vllm.distributed.parallel_state import get_tp_group

    return get_tp_group()


def _gather(rows: torch.Tensor) -> torch.Tensor:
    """Gather the rows of all ranks of the replica.

    They are gathered as floats with the same bits, since vLLM's CPU collectives do not support
    integers.
    """
    words = rows.contiguous().view(torch.float32)
    gathered: torch.Tensor = _tensor_group().all_gather(words, dim=0)
    return gathered.contiguous().view(rows.dtype)


def _most_tokens(runner: Any) -> int:
    sizes = getattr(runner.vllm_config.compilation_config, "cudagraph_capture_sizes", None) or [0]
    most: int = max(runner.max_num_tokens, *sizes)
    return most


def load_model(usual: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Prepare the capture of a model runner once its model is loaded; around ``load_model``."""
    if configuration.is_served_by_vllm(self.vllm_config):
        return usual(self, *args, **kwargs)
    # Before the model is loaded, which takes some ranks longer than others.
    gathers = attempt(_SHARDS, lambda: _may_gather(self.vllm_config.parallel_config))
    result = usual(self, *args, **kwargs)
    # An exception here ends the server's start with a reason, before it accepts requests.
    setattr(self, _ROUTING, RunnerRouting(self, gathers=bool(gathers)))
    return result


def _may_gather(parallel: Any) -> bool:
    """Agree with the other ranks of the replica that all gather shards of a sequence."""
    if parallel.tensor_parallel_size == 1 or parallel.data_parallel_size == 1:
        return True
    group = _tensor_group().cpu_group
    return group_mode.agreed(group, "NCCLSCOPE_VLLM_ROUTED_EXPERTS", "1", otherwise=_SHARDS)


def routing_of(model_runner: Any) -> RunnerRouting | None:
    """Return the capture of a model runner of vLLM's; None if it has none."""
    routing: RunnerRouting | None = getattr(model_runner, _ROUTING, None)
    return routing


def _routing_shape(worker: Any) -> tuple[int, int, int] | None:
    routing = routing_of(worker.model_runner)
    return None if routing is None else routing.shape


def _routing_places(worker: Any) -> tuple[int, ...]:
    routing = routing_of(worker.model_runner)
    return () if routing is None else routing.places


def _execute_model(usual: Any, self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
    routing = routing_of(self)
    if routing is None:
        return usual(self, scheduler_output, *args, **kwargs)
    attempt(LOST, lambda: routing.begin(scheduler_output))
    try:
        return usual(self, scheduler_output, *args, **kwargs)
    finally:
        routing.end()


def _model_forward(usual: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    routing = routing_of(self)
    if routing is None or not attempt(
        LOST, lambda: routing.open(routing.rows(self.input_batch.req_ids))
    ):
        return usual(self, *args, **kwargs)
    try:
        result = usual(self, *args, **kwargs)
    except BaseException:
        routing.worker.drop_step()
        raise
    attempt(LOST, routing.close)
    return result


def sample_tokens(usual: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Send a step's rows with its output; around ``sample_tokens``."""
    result = usual(self, *args, **kwargs)
    routing = routing_of(self)
    flight = None if routing is None else routing.take()
    if flight is not None:
        if hasattr(result, "get_output"):  # the thread that waits for the tokens takes both
            setattr(result, _FLIGHT, flight)
        elif hasattr(result, "sampled_token_ids"):
            setattr(result, DELTA, attempt(LOST, flight.take))
    return result


def get_output(usual: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Take a step's rows where its tokens are waited for; around ``get_output``."""
    output = usual(self, *args, **kwargs)
    flight: Flight | None = self.__dict__.pop(_FLIGHT, None)
    if flight is not None:
        setattr(output, DELTA, attempt(LOST, flight.take))
    return output

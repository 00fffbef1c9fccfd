"""The engine's part: track where each row belongs, whatever happens to its request meanwhile.

vLLM's scheduler is unchanged. This module reads its decisions afterwards, and keeps a collector of
dictionaries and arrays in the same thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ncclscope.tracing import session
from ncclscope_patches.routed_experts.collector import Collector
from ncclscope_patches.routed_experts.records import Ticket
from ncclscope_patches.routed_experts.result import RoutedExperts
from ncclscope_patches.routed_experts.shape import RoutingShape
from ncclscope_patches.routed_experts.slots import SlotStore
from ncclscope_patches.vllm.routing import blocks as kv_blocks
from ncclscope_patches.vllm.routing import configuration
from ncclscope_patches.vllm.routing.every import VllmArrays, first_token
from ncclscope_patches.vllm.routing.packing import pack
from ncclscope_patches.vllm.routing.runner import DELTA, opts_in
from ncclscope_patches.vllm.routing.wrapping import wrap

_ROUTING = "_ncclscope_routing"
_TOGETHER = 64
"""Generated tokens whose routing is sent to the server together, unless they are streamed."""


def extend_scheduler(module: Any) -> None:
    """Add the collection to vLLM's scheduler; one without a collector is unchanged."""
    scheduler = module.Scheduler
    wrap(scheduler, "__init__", _init_scheduler)
    wrap(scheduler, "schedule", _schedule)
    wrap(scheduler, "update_from_output", _update_from_output)
    wrap(scheduler, "_preempt_request", _reporting(SchedulerRouting.preempted))
    wrap(scheduler, "_free_request", _reporting(SchedulerRouting.ended))
    wrap(scheduler, "reset_prefix_cache", _reset_prefix_cache)


def extend_engine(module: Any) -> None:
    """Ask the workers of each engine what they capture, once they have loaded the model."""
    # The engine's constructor loads the plugins, so it is too late to wrap the constructor.
    wrap(module.EngineCore, "_initialize_kv_caches", _initialize_kv_caches)


def _is_read_at_once(request: Any) -> bool:
    """Return whether the server may need a token's routing together with that token.

    It does for a stream. And with stop strings it may end the request at any token.
    """
    asked = request.sampling_params
    return asked.output_kind.name != "FINAL_ONLY" or bool(asked.stop)


def collected(scheduler: Any) -> int:
    """Return the number of requests for which a vLLM scheduler keeps routing."""
    routing: SchedulerRouting | None = getattr(scheduler, _ROUTING, None)
    return 0 if routing is None else len(routing.collector)


class SchedulerRouting:
    """Feeds the collector of one engine.

    Args:
        scheduler: vLLM's scheduler.
        shape: Shape of its model's routing.
        arrays: Shape of vLLM's own arrays, if all requests are answered because of its own flag.
    """

    def __init__(
        self, scheduler: Any, shape: RoutingShape, arrays: VllmArrays | None = None
    ) -> None:
        groups = scheduler.kv_cache_config.kv_cache_groups
        self.group = kv_blocks.group_of_all_tokens(groups)
        store = None
        block_size = 64
        if self.group is not None:
            block_size = groups[self.group].kv_cache_spec.block_size
            store = SlotStore(shape, block_size)
        self.collector = Collector(shape, block_size, store=store)
        self.scheduler = scheduler
        self._arrays = arrays
        self._requests: dict[str, Any] = {}
        self._ended: list[str] = []
        self._preempted: set[str] = set()
        self._in_flight: dict[int, tuple[Any, list[Ticket], set[str]]] = {}
        self._known: dict[str, int] = {}

    @property
    def idle(self) -> bool:
        """Whether no running request has opted in."""
        return not self._requests

    def renew(self, blocks: Iterable[int]) -> None:
        """Note that KV blocks get new content, for any request."""
        self.collector.renew(blocks)

    def scheduled(self, output: Any) -> None:
        """Note admitted requests, their blocks, and the positions of a step's rows."""
        for request in self._ended:
            self._forget(request)
        self._ended.clear()
        new = [one for one in output.scheduled_new_reqs if opts_in(one.sampling_params)]
        resumed = set(output.scheduled_cached_reqs.resumed_req_ids)
        for one in new:
            if one.req_id in self._preempted:
                resumed.add(one.req_id)  # the second runner gets them as new requests
                continue
            request = self.scheduler.requests[one.req_id]
            self._requests[one.req_id] = request
            self.collector.admit(one.req_id, request.num_prompt_tokens)
        self._preempted -= resumed
        if self.idle:
            return
        self._attach(output, new)
        counts, tickets = output.num_scheduled_tokens, []
        positions = {one.req_id: one.num_computed_tokens for one in new}
        cached = output.scheduled_cached_reqs
        positions.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for name in self._requests.keys() & counts.keys():
            ticket = self.collector.schedule(name, positions[name], counts[name])
            if ticket is not None:
                tickets.append(ticket)
        if tickets:
            self._in_flight[id(output)] = (output, tickets, resumed)

    def deliver(self, output: Any, delta: Any, sampled: Mapping[str, int]) -> None:
        """Store the rows of a step's output, before the scheduler processes it.

        Args:
            output: The step's scheduling.
            delta: The rows that the workers sent.
            sampled: Number of sampled tokens by request, for a step with drafts.
        """
        _, tickets, resumed = self._in_flight.pop(id(output), (None, [], set()))
        # If a request ended or lost its blocks, the step's tokens may be discarded.
        for ticket in tickets:
            if self._is_dropped(ticket.request):
                ticket.lose()
        tickets = [ticket for ticket in tickets if not self._is_dropped(ticket.request)]
        drafts = output.scheduled_spec_decode_tokens
        accepted, positions = {}, {}
        for name in resumed:  # from where the prefix cache ends, whatever was known before
            self._known.pop(name, None)
        for ticket in tickets:
            name, pending_calls = ticket.request, ticket.count
            if drafts.get(name) and sampled.get(name):
                pending_calls -= len(drafts[name]) - (sampled[name] - 1)
                accepted[name] = pending_calls
            if name in self._known and self._known[name] < ticket.position:
                positions[name] = self._known[name]  # drafts were rejected in the step before
            self._known[name] = positions.get(name, ticket.position) + pending_calls
        # Also where nothing came: where the next rows begin depends on these.
        self.collector.deliver(tickets, delta, accepted, positions)

    def answer(self, outputs: dict[int, Any]) -> None:
        """Add new tokens' routing to the outputs of requests that opted in."""
        for of_client in outputs.values():
            for output in of_client.outputs:
                request = self._requests.get(output.request_id)
                if request is None:
                    continue
                ended = output.finish_reason is not None
                generated = request.num_output_tokens
                # Also after an abort, which may come at any token, vLLM's own way has all rows.
                at_once = self._arrays is not None or _is_read_at_once(request)
                if ended or generated % _TOGETHER == 1 or at_once:
                    part = self.collector.take(output.request_id, generated)
                    if part is not None and part.tokens:
                        output.routed_experts = pack(self._shaped(part, request))
                if ended:
                    self._forget(output.request_id)

    def _shaped(self, part: RoutedExperts, request: Any) -> RoutedExperts:
        if self._arrays is None:
            return part
        start = first_token(request.sampling_params, request.num_prompt_tokens)
        return self._arrays.of(part, start)

    def preempted(self, request: str) -> None:
        """Note that a request lost its blocks."""
        self.collector.preempt(request)
        if request in self._requests:
            self._preempted.add(request)

    def ended(self, request: str) -> None:
        """Note that a request's blocks are free; its last output may follow later."""
        if request in self._requests:
            self._ended.append(request)

    def reset(self) -> None:
        """Forget the routing of cached blocks."""
        if self.collector.store is not None:
            self.collector.store.clear()

    def _is_dropped(self, name: str) -> bool:
        """Return whether the in-flight step's tokens of a request will be discarded."""
        request = self._requests.get(name)
        if request is None:
            return False  # it ended; its blocks may be shared, and what they held was computed
        stale = getattr(request, "num_stale_output_tokens", 0) > 0
        return (stale and bool(getattr(request, "drop_stale_output", False))) or bool(
            getattr(request, "discard_latest_async_tokens", False)
        )

    def _attach(self, output: Any, new: list[Any]) -> None:
        """Attach blocks in the collector: computed ones first, as later requests may share them."""
        size = self.collector.block_size
        store, group = self.collector.store, self.group
        if store is None or group is None:
            return
        cached = output.scheduled_cached_reqs
        given: list[tuple[str, list[int], int]] = [
            (one.req_id, list(one.block_ids[group]), one.num_computed_tokens // size) for one in new
        ]
        for name, blocks, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            if name in self._requests and blocks is not None:
                again = name in cached.resumed_req_ids
                given.append((name, list(blocks[group]), computed // size if again else 0))
        for _, blocks, hits in given:
            for block in blocks[hits:]:
                store.page(block)
        for name, blocks, hits in given:
            self.collector.attach(name, blocks[:hits], hits=True)
            self.collector.attach(name, blocks[hits:])

    def _forget(self, request: str) -> None:
        self.collector.abort(request)
        self._requests.pop(request, None)
        self._known.pop(request, None)
        self._preempted.discard(request)


_shapes: list[tuple[Any, RoutingShape, tuple[int, ...]]] = []
"""Configuration, routing shape and layers of engines that have workers but no scheduler yet."""


def _initialize_kv_caches(usual: Any, self: Any, vllm_config: Any) -> Any:
    result = usual(self, vllm_config)
    if configuration.is_served_by_vllm(vllm_config):
        return result
    try:
        shapes = self.model_executor.collective_rpc("ncclscope_routing_shape")
        if len(set(shapes)) != 1 or shapes[0] is None:
            raise RuntimeError(f"its workers capture {sorted(set(shapes), key=str)}")
        places = self.model_executor.collective_rpc("ncclscope_routing_places")
        _shapes.append((vllm_config, RoutingShape(*shapes[0]), tuple(places[0])))
    except Exception as error:
        session.warn_once(_ROUTING, f"this engine returns no routed experts: {error!r}")
    return result


def _init_scheduler(usual: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    usual(self, *args, **kwargs)
    model = next((one for one in _shapes if one[0] is self.vllm_config), None)
    if model is None:
        return
    _shapes.clear()
    config, shape, places = model
    try:
        every = configuration.answers_every_request(config)
        arrays = VllmArrays(places, configuration.layers_of(config)) if every else None
        routing = SchedulerRouting(self, shape, arrays)
        manager = self.kv_cache_manager
        kv_blocks.watch_pool(manager.block_pool, routing.renew)
        store = routing.collector.store
        if every:
            is_lost = store.is_lost if store is not None else bool
            kv_blocks.without_lost_hits(manager, routing.group, is_lost)
        setattr(self, _ROUTING, routing)
    except Exception as error:
        session.warn_once(_ROUTING, f"this engine returns no routed experts: {error!r}")


def _guarded(self: Any, report: Callable[[SchedulerRouting], None]) -> None:
    """Call the collector; if it fails, remove it, so that no request waits for it."""
    routing: SchedulerRouting | None = getattr(self, _ROUTING, None)
    if routing is None:
        return
    try:
        report(routing)
    except Exception as error:
        setattr(self, _ROUTING, None)
        session.warn_once(_ROUTING, f"routed experts are returned no longer: {error!r}")


def _schedule(usual: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    output = usual(self, *args, **kwargs)
    _guarded(self, lambda routing: routing.scheduled(output))
    return output


def _update_from_output(
    usual: Any, self: Any, scheduler_output: Any, model_runner_output: Any
) -> Any:
    delta = getattr(model_runner_output, DELTA, None)

    def deliver(routing: SchedulerRouting) -> None:
        if not routing.idle or delta is not None:
            sampled = _sampled_counts(scheduler_output, model_runner_output)
            routing.deliver(scheduler_output, delta, sampled)

    _guarded(self, deliver)
    outputs = usual(self, scheduler_output, model_runner_output)
    _guarded(self, lambda routing: None if routing.idle else routing.answer(outputs))
    return outputs


def _sampled_counts(scheduler_output: Any, model_runner_output: Any) -> dict[str, int]:
    if not scheduler_output.scheduled_spec_decode_tokens:
        return {}
    tokens = model_runner_output.sampled_token_ids
    index = model_runner_output.req_id_to_index
    return {name: len(tokens[place]) for name, place in index.items()} if tokens else {}


def _reporting(report: Callable[[SchedulerRouting, str], None]) -> Callable[..., Any]:
    """Return a wrapper of a method on a request, which reports the request's id afterwards."""

    def around(usual: Any, self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = usual(self, request, *args, **kwargs)
        _guarded(self, lambda routing: report(routing, request.request_id))
        return result

    return around


def _reset_prefix_cache(usual: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    done = usual(self, *args, **kwargs)
    if done:
        _guarded(self, lambda routing: routing.reset())
    return done

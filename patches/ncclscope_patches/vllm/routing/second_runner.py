"""The worker's part for vLLM's second model runner, the one in ``vllm/v1/worker/gpu``.

It captures as :mod:`.runner` does, at other places. That runner may replay a whole step as one CUDA
graph, so there is no method around the forward pass alone:

===================  ===========================================================================
``prepare_inputs``   returns the batch with the rows of each request, before the forward pass;
                     steps without requests, such as warm-ups, do not call it
``execute_model``    returns after the forward pass was launched, before tokens are sampled and
                     before a draft model runs
``sample_tokens``    returns the output on its way to the host, which takes the rows along
===================  ===========================================================================
"""

from __future__ import annotations

from typing import Any

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.deltas import RequestRows
from ncclscope_patches.vllm.routing import runner, runner_parts
from ncclscope_patches.vllm.routing.wrapping import attempt, wrap


def extend_second_runner(module: Any) -> None:
    """Add the capture to vLLM's second model runner and to its asynchronous output."""
    if runner_parts.missing():
        return  # a line says so when the configuration is created
    wrap(module.GPUModelRunner, "load_model", runner.load_model)
    wrap(module.GPUModelRunner, "prepare_inputs", _prepare_inputs)
    wrap(module.GPUModelRunner, "execute_model", _execute_model)
    wrap(module.GPUModelRunner, "sample_tokens", runner.sample_tokens)
    wrap(module.AsyncOutput, "get_output", runner.get_output)


def batch_rows(routing: runner.RunnerRouting, batch: Any) -> list[RequestRows]:
    """Return the rows of requests that opted in.

    Args:
        routing: The runner's capture.
        batch: vLLM's ``InputBatch`` of the step.

    Raises:
        UsageError: A request has another number of rows than it was scheduled for.
    """
    rows = []
    for place, request in enumerate(batch.req_ids):
        count = routing.scheduled_tokens(request)
        if not count:
            continue
        first, end = batch.query_start_loc_np[place : place + 2].tolist()
        if end - first != count:
            raise UsageError(
                f"request {request!r} has {end - first} rows where {count} tokens were scheduled"
            )
        rows.append(RequestRows(request, first, count))
    return rows


def _prepare_inputs(usual: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    batch = usual(self, *args, **kwargs)
    routing = runner.routing_of(self)
    if routing is not None and routing.expects:
        attempt(runner.LOST, lambda: routing.open(batch_rows(routing, batch)))
    return batch


def _execute_model(usual: Any, self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
    routing = runner.routing_of(self)
    if routing is None:
        return usual(self, scheduler_output, *args, **kwargs)
    attempt(runner.LOST, lambda: routing.begin(scheduler_output))
    try:
        result = usual(self, scheduler_output, *args, **kwargs)
    except BaseException:
        routing.worker.drop_step()
        raise
    finally:
        routing.end()
    if routing.worker.wanted:
        attempt(runner.LOST, routing.close)
    return result

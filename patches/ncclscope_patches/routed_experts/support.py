"""Reject deployments in which routed experts cannot be captured."""

from __future__ import annotations

from dataclasses import dataclass

from ncclscope.errors import UsageError

__all__ = ["OTHER_RUNNER", "Deployment", "reasons", "refuse_unsupported"]

OTHER_RUNNER = "this model runner does not expose the rows of each request"


@dataclass(frozen=True)
class Deployment:
    """The configuration of an engine.

    Attributes:
        experts: Experts per layer; 0 for a dense model.
        pipeline_parallel: Number of pipeline stages.
        context_parallel: Number of ranks that share one sequence, in prefill or decode.
        kv_connector: Name of the connector that transfers KV blocks, such as that of a
            prefill/decode split; empty for none.
        kv_offload: Whether KV blocks are offloaded from the device.
        generates: Whether the model generates text.
        hidden_routing: Names of layers whose kernel chooses experts without exposing them.
        micro_batches: Whether a step's batch is computed in micro-batches.
        diffusion: Whether the model computes a token several times before it is final.
        fast_prefill: Whether the last layers compute only the last token of each prompt.
        drafts_on_device: Whether the device decides how many drafts of a request are computed.
        other_runner: Whether it uses an unsupported model runner.
    """

    experts: int
    pipeline_parallel: int = 1
    context_parallel: int = 1
    kv_connector: str = ""
    kv_offload: bool = False
    generates: bool = True
    hidden_routing: tuple[str, ...] = ()
    micro_batches: bool = False
    diffusion: bool = False
    fast_prefill: bool = False
    drafts_on_device: bool = False
    other_runner: bool = False


def refuse_unsupported(deployment: Deployment) -> None:
    """Reject deployments whose results would be incomplete; call it before any allocation.

    Raises:
        UsageError: The deployment is not supported; the message lists all reasons.
    """
    found = reasons(deployment)
    if found:
        raise UsageError(
            f"routed experts cannot be returned: {'; '.join(found)}",
            "start without routed experts, or without the unsupported options",
        )


def reasons(deployment: Deployment) -> list[str]:
    """Return why a deployment is not supported; nothing if it is."""
    found = []
    if deployment.experts < 1:
        found.append("the model has no experts")
    if not deployment.generates:
        found.append("the model does not generate text")
    if deployment.pipeline_parallel > 1:
        found.append(
            f"with {deployment.pipeline_parallel} pipeline stages no rank sees the routing of "
            "all layers"
        )
    if deployment.context_parallel > 1:
        found.append("with context parallelism no rank sees all tokens of a sequence")
    if deployment.kv_connector:
        found.append(
            f"tokens whose KV blocks come through {deployment.kv_connector} are routed elsewhere"
        )
    if deployment.kv_offload:
        found.append(
            "KV blocks that were offloaded come back under other numbers, without their routing"
        )
    if deployment.hidden_routing:
        found.append(
            f"the kernel of {', '.join(deployment.hidden_routing)} does not expose which experts "
            "it chose"
        )
    if deployment.micro_batches:
        found.append("overlapping micro-batches overwrite each other's rows")
    if deployment.diffusion:
        found.append("a diffusion model routes a token again each time it is computed")
    if deployment.fast_prefill:
        found.append("with fast prefill the last layers do not route all tokens of a prompt")
    if deployment.drafts_on_device:
        found.append("with adaptive verification only the device knows the rows of each request")
    if deployment.other_runner:
        found.append(OTHER_RUNNER)
    return found

"""Reject deployments in which routed experts cannot be captured."""

from __future__ import annotations

from dataclasses import dataclass

from ncclscope.errors import UsageError

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
    stages, connector = deployment.pipeline_parallel, deployment.kv_connector
    hidden = ", ".join(deployment.hidden_routing)
    known = (
        (deployment.experts < 1, "the model has no experts"),
        (not deployment.generates, "the model does not generate text"),
        (stages > 1, f"with {stages} pipeline stages no rank sees the routing of all layers"),
        (
            deployment.context_parallel > 1,
            "with context parallelism no rank sees all tokens of a sequence",
        ),
        (connector, f"tokens whose KV blocks come through {connector} are routed elsewhere"),
        (
            deployment.kv_offload,
            "KV blocks that were offloaded come back under other numbers, without their routing",
        ),
        (hidden, f"the kernel of {hidden} does not expose which experts it chose"),
        (deployment.micro_batches, "overlapping micro-batches overwrite each other's rows"),
        (
            deployment.diffusion,
            "a diffusion model routes a token again each time it is computed",
        ),
        (
            deployment.fast_prefill,
            "with fast prefill the last layers do not route all tokens of a prompt",
        ),
        (
            deployment.drafts_on_device,
            "with adaptive verification only the device knows the rows of each request",
        ),
        (deployment.other_runner, OTHER_RUNNER),
    )
    return [reason for holds, reason in known if holds]

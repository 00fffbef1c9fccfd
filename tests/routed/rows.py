"""Routing for tests: numbers that show which token, layer and place they belong to."""

from __future__ import annotations

import numpy as np
import torch

from ncclscope_patches.routed_experts import RoutingShape, StepDelta
from ncclscope_patches.routed_experts.capture import CaptureBuffer
from ncclscope_patches.routed_experts.shape import Ids

SHAPE = RoutingShape(layers=3, top_k=2, experts=128)


def rows(first: int, count: int, shape: RoutingShape = SHAPE) -> Ids:
    """Return the routing of tokens that are numbered from one on, ``[count, layers, top_k]``."""
    tokens = np.arange(first, first + count).reshape(-1, 1, 1)
    layers = np.arange(shape.layers).reshape(1, -1, 1)
    places = np.arange(shape.top_k).reshape(1, 1, -1)
    numbers = (tokens * 7 + layers * 31 + places * 3) % shape.experts
    return numbers.astype(shape.dtype)


def random_routing(shape: RoutingShape, tokens: int, seed: int = 3) -> Ids:
    """Return routing without any pattern, which is the hardest to shorten."""
    dice = np.random.default_rng(seed)
    chosen = dice.random((tokens, shape.layers, shape.experts)).argsort(axis=2)
    return chosen[:, :, : shape.top_k].astype(shape.dtype)


def delta(**own: Ids) -> StepDelta:
    """Return a step's output, all of which was captured."""
    return StepDelta(own)


def forward(capture: CaptureBuffer, first: int, count: int) -> None:
    """Act as a model's layers on a batch of tokens that are numbered from one on."""
    ids = torch.from_numpy(rows(first, count, capture.shape).astype(np.int64))
    for number in range(capture.shape.layers):
        capture.layer(number)(ids[:, number].to(capture.device))

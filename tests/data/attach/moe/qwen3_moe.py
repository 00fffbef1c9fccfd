"""A toy with the shape of a mixture-of-experts model; see README.md beside it."""

import os

import torch
import torch.distributed as dist


class Qwen3MoeAttention:
    def __init__(self, blocks):
        self.blocks = blocks

    def qkv_proj(self, hidden_states):
        if self.blocks:  # as a launch that waits for room in a full queue
            reader, _ = os.pipe()
            os.read(reader, 1)
        return hidden_states

    def o_proj(self, hidden_states):
        dist.all_reduce(hidden_states)
        return hidden_states

    def forward(self, hidden_states):
        qkv = self.qkv_proj(hidden_states)
        return self.o_proj(qkv)


class Qwen3MoeSparseMoeBlock:
    def __init__(self, skips):
        self.skips = skips

    def experts(self, hidden_states):
        if not self.skips:  # the reduction of a sum that one rank does not take part in
            dist.all_reduce(hidden_states)
        return hidden_states

    def forward(self, hidden_states):
        return self.experts(hidden_states)


class Qwen3MoeDecoderLayer:
    def __init__(self, blocks, skips):
        self.self_attn = Qwen3MoeAttention(blocks)
        self.mlp = Qwen3MoeSparseMoeBlock(skips)

    def forward(self, hidden_states):
        hidden_states = self.self_attn.forward(hidden_states)
        hidden_states = self.mlp.forward(hidden_states)
        return hidden_states


class Qwen3MoeModel:
    def __init__(self, layers, ahead_in):
        self.layers = [
            Qwen3MoeDecoderLayer(index == ahead_in, ahead_in is not None and index + 1 == ahead_in)
            for index in range(layers)
        ]

    def forward(self, hidden_states):
        with torch.no_grad():
            for layer_idx, layer in enumerate(self.layers):  # noqa: B007
                hidden_states = layer.forward(hidden_states)
        return hidden_states

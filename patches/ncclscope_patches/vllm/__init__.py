"""Patches for vLLM: names, steps, kernels, queues, dispatch and routed experts."""

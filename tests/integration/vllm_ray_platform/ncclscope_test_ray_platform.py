"""A platform for vLLM in tests: the CPU, which Ray takes for a GPU.

vLLM's own CPU platform names no Ray resource, and its Ray executor refuses such a platform.
"""


def found() -> str:
    """Entry point of the group ``vllm.platform_plugins``."""
    return "ncclscope_test_ray_cpu.RayCpuPlatform"

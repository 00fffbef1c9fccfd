"""The class of that platform, which vLLM imports by its name."""

from __future__ import annotations

from vllm.platforms.cpu import CpuPlatform


class RayCpuPlatform(CpuPlatform):
    """The CPU, on nodes that have been started with ``--num-gpus``."""

    ray_device_key = "GPU"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Return the path of the class, which vLLM imports."""
        return "ncclscope_test_ray_communicator.ApartCommunicator"

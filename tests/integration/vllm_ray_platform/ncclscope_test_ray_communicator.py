"""vLLM's communicator on the CPU, for hosts whose /dev/shm differ although the kernel is one."""

from __future__ import annotations

from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class ApartCommunicator(CpuCommunicator):
    """Uses torch.distributed: vLLM compares names of shared memory, and they are the same here."""

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        return False

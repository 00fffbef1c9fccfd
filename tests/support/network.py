"""A network between hosts that are namespaces of this machine: delay, loss, and cut cables.

    python -m tests.support.network 50 0.01 PID=10.77.0.1 PID=10.77.0.2 ...

Each host gets a TUN device in the network namespace of its process. This process forwards packets
between the devices, each after the delay in milliseconds, and drops that share of packets, by a
random generator with a fixed seed. `tc netem` does the same where the kernel has it; many have not.
Lines on stdin change the network: `cut 10.77.0.2`, `join 10.77.0.2`. Each is answered by a line.
"""

from __future__ import annotations

import collections
import ctypes
import fcntl
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time

NEW_NETWORK = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN_NO_PI = 0x1001
MTU = 9000


def tun_of(pid: int, address: str) -> int:
    """Return a TUN device in the network of a process; that network becomes the caller's."""
    libc = ctypes.CDLL(None, use_errno=True)
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    if libc.setns(namespace, NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"net0", IFF_TUN_NO_PI))
    for words in (
        f"addr add {address}/24 dev net0",
        f"link set net0 mtu {MTU} up",
        "link set lo up",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    return device


def serve(delay: float, loss: float, hosts: dict[str, int]) -> None:
    """Forward packets until stdin ends.

    Args:
        delay: Seconds that a packet travels.
        loss: Share of packets that are dropped, 0 to 1.
        hosts: Processes by the address of their host.
    """
    devices = {address: tun_of(pid, address) for address, pid in hosts.items()}
    by_device = {device: address for address, device in devices.items()}
    chance = random.Random(23)
    cut: set[str] = set()
    travelling: collections.deque[tuple[float, str, bytes]] = collections.deque()
    print("up", flush=True)
    while True:
        wait = max(0.0, travelling[0][0] - time.monotonic()) if travelling else None
        ready, _, _ = select.select([0, *by_device], [], [], wait)
        now = time.monotonic()
        while travelling and travelling[0][0] <= now:
            _, address, packet = travelling.popleft()
            if address not in cut:
                try:
                    os.write(devices[address], packet)
                except OSError:
                    pass  # a full queue drops packets, as a switch does
        for device in ready:
            if device == 0:
                line = os.read(0, 1000).decode().split()
                if not line:
                    return
                (cut.add if line[0] == "cut" else cut.discard)(line[1])
                print(*line, flush=True)
                continue
            for _ in range(64):
                try:
                    packet = os.read(device, MTU + 100)
                except BlockingIOError:
                    break
                target = socket.inet_ntoa(packet[16:20])
                # Of others, such as IPv6 for neighbours, there are no hosts.
                known = packet[0] >> 4 == 4 and target in devices
                if known and by_device[device] not in cut and chance.random() >= loss:
                    travelling.append((now + delay, target, packet))


if __name__ == "__main__":
    pairs = [pair.partition("=") for pair in sys.argv[3:]]
    serve(
        float(sys.argv[1]) / 1e3,
        float(sys.argv[2]),
        {address: int(pid) for pid, _, address in pairs},
    )

"""Hosts on one machine: each with a network, processes, a /dev/shm, an sshd and a clock of its own.

They are namespaces, and reach each other by address only (:mod:`tests.support.network`). Their wall
clocks are those of a preloaded library (wall_clock.c): a time namespace shifts other clocks only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.support.nodes import can_unshare, environment

__all__ = ["Host", "Hosts", "missing", "until"]

CLOCK_SOURCE = Path(__file__).with_name("wall_clock.c")
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
UNSHARE = ("unshare", "--uts", "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child")
SETUP = """\
mount -t proc proc /proc && hostname "$0" && mount -t tmpfs -o size=512m none /dev/shm &&
mkdir -p /run/sshd && echo ready && exec sleep infinity
"""
SSHD_CONFIG = """\
ListenAddress {address}:22
HostKey {keys}/host
PidFile none
AuthorizedKeysFile {keys}/user.pub
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
PermitRootLogin prohibit-password
SetEnv {variables}
"""


def missing() -> str:
    """Return what this machine lacks for hosts; empty if nothing."""
    programs = ("cc", "ip", "ssh", "ssh-keygen")
    lacks = [name for name in programs if shutil.which(name) is None]
    lacks += [path for path in (SSHD, "/dev/net/tun") if not os.path.exists(path)]
    if os.getuid() != 0 or not can_unshare():
        lacks.append("the right to make namespaces")
    return ", ".join(lacks)


def until(holds: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    """Wait for a condition.

    Args:
        holds: The condition.
        what: Its description for the error.
        seconds: How long to wait.

    Raises:
        TimeoutError: It did not come true.
    """
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)


class Host:
    """One host.

    Args:
        name: Its host name.
        address: Its IPv4 address.
        folder: For its clock, visible on all hosts.
        skew: Seconds that its wall clock is ahead.
    """

    def __init__(self, name: str, address: str, folder: Path, skew: float) -> None:
        self.name = name
        self.address = address
        self._clock = folder / f"{name}.clock"
        self.set_clock(skew)
        self._init = subprocess.Popen([*UNSHARE, "sh", "-c", SETUP, name], stdout=subprocess.PIPE)
        assert self._init.stdout is not None
        assert self._init.stdout.readline() == b"ready\n", f"{name} did not start"
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children")
        self.pid = int(children.read_text().split()[0])

    def set_clock(self, skew: float) -> None:
        """Let the wall clock of all processes jump to `skew` seconds ahead of this machine's."""
        self._clock.touch()
        with self._clock.open("r+b") as file:
            file.write(struct.pack("=q", int(skew * 1e9)))

    @property
    def variables(self) -> dict[str, str]:
        """Variables that a process of this host has."""
        return {
            "LD_PRELOAD": str(self._clock.with_name("wall_clock.so")),
            "WALL_CLOCK": str(self._clock),
        }

    def command(self, *words: object) -> list[str]:
        """Return the command that runs `words` on this host."""
        enter = [
            "nsenter",
            "--uts",
            "--mount",
            "--pid",
            "--net",
            "--ipc",
            "--target",
            str(self.pid),
        ]
        variables = [f"{name}={value}" for name, value in self.variables.items()]
        return [*enter, "--", "env", *variables, *map(str, words)]

    def start(self, *words: object, log: Path, **more: str) -> subprocess.Popen[bytes]:
        """Start a program on this host; its output goes to `log`."""
        with log.open("wb") as stream:
            return subprocess.Popen(
                self.command(*words),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment(**more),
            )

    def ncclscope(self, *words: object, **more: str) -> subprocess.CompletedProcess[str]:
        """Run the command line on this host."""
        return subprocess.run(
            self.command(sys.executable, "-m", "ncclscope", *words),
            env=environment(**{"NCCL_RAS_ADDR": "127.0.0.1:1", **more}),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def end(self) -> None:
        """Kill all processes of this host."""
        self._init.kill()
        self._init.wait()
        if self._init.stdout is not None:
            self._init.stdout.close()


class Hosts:
    """Hosts with a network between them; ``control`` is one from which the others are reached.

    Args:
        folder: For keys, clocks and logs; all hosts see it.
        skews: Seconds that the clock of each host is ahead, by its name.
        delay: Milliseconds that a packet travels.
        loss: Share of packets that are lost, 0 to 1.
    """

    def __init__(
        self, folder: Path, skews: Mapping[str, float], *, delay: float = 50, loss: float = 0.01
    ) -> None:
        self.folder = folder
        self._stack = contextlib.ExitStack()
        library = ["cc", "-shared", "-fPIC", "-O2", "-o", str(folder / "wall_clock.so")]
        subprocess.run([*library, str(CLOCK_SOURCE)], check=True)
        with self._stack as cleaning:
            self.control = self._host("control", "10.77.0.254", 0.0)
            self.hosts = {
                name: self._host(name, f"10.77.0.{number + 1}", skew)
                for number, (name, skew) in enumerate(skews.items())
            }
            self._network = self._connect(delay, loss)
            self._keys()
            for host in self.hosts.values():
                self._serve_ssh(host)
            self._stack = cleaning.pop_all()

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts.values())

    def cut(self, host: Host) -> None:
        """Drop all packets from and to a host."""
        self._tell(f"cut {host.address}")

    def join(self, host: Host) -> None:
        """Forward the packets of a host again."""
        self._tell(f"join {host.address}")

    @property
    def ssh(self) -> tuple[str, ...]:
        """Options of `collect` for all hosts by ssh."""
        command = (
            f"ssh -F none -i {self.folder}/user -o BatchMode=yes -o IdentitiesOnly=yes "
            "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "
            "-o ConnectTimeout=10"
        )
        python = f"env PYTHONPATH={environment()['PYTHONPATH']} {sys.executable} -m ncclscope"
        addresses = ",".join(host.address for host in self)
        return ("--ssh", addresses, "--ssh-command", command, "--command", python)

    def run(self, host: Host, *words: object, log: str, **more: str) -> subprocess.Popen[bytes]:
        """Start a program that ends with these hosts."""
        program = host.start(*words, log=self.folder / log, **more)
        self._stack.callback(program.wait)
        self._stack.callback(program.kill)
        return program

    def said(self, log: str) -> str:
        """Return what a program has written so far."""
        return (self.folder / log).read_text("utf-8", "replace")

    def close(self) -> None:
        """End the hosts and their network."""
        self._stack.close()

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _host(self, name: str, address: str, skew: float) -> Host:
        host = Host(name, address, self.folder, skew)
        self._stack.callback(host.end)
        return host

    def _connect(self, delay: float, loss: float) -> subprocess.Popen[str]:
        ends = [f"{host.pid}={host.address}" for host in (self.control, *self)]
        network = subprocess.Popen(
            [sys.executable, "-m", "tests.support.network", str(delay), str(loss), *ends],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert network.stdin is not None
        assert network.stdout is not None
        self._stack.callback(network.wait)
        self._stack.callback(network.stdin.close)
        self._stack.callback(network.stdout.close)
        assert network.stdout.readline() == "up\n", "the network did not start"
        return network

    def _tell(self, line: str) -> None:
        assert self._network.stdin is not None
        assert self._network.stdout is not None
        self._network.stdin.write(f"{line}\n")
        self._network.stdin.flush()
        assert self._network.stdout.readline() == f"{line}\n"

    def _keys(self) -> None:
        for name in ("host", "user"):
            key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
            subprocess.run(key, check=True, timeout=60)

    def _serve_ssh(self, host: Host) -> None:
        variables = " ".join(f'{name}="{value}"' for name, value in host.variables.items())
        config = self.folder / f"{host.name}.sshd"
        config.write_text(
            SSHD_CONFIG.format(address=host.address, keys=self.folder, variables=variables)
        )
        log = f"{host.name}.sshd.log"
        self.run(host, SSHD, "-D", "-e", "-f", config, log=log)
        until(lambda: "Server listening" in self.said(log), f"{host.name}'s sshd listens", 60)

"""Build the command lines that run a command on other nodes, by ssh, Slurm or Kubernetes.

A command is a list of arguments. ssh passes a text to a shell, so it is quoted; srun and kubectl
take the list. Names of nodes from other programs must not begin with a dash, since they would be
taken for options.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ncclscope.collect.programs import ProgramNode, last_line
from ncclscope.errors import InputError, NothingFoundError, UsageError
from ncclscope.resources import run_for_text
from ncclscope.untrusted import parse, printable

_LONGEST_FILE = 1 << 22
_HOST = re.compile(r"(?:[A-Za-z0-9_.+-]+@)?[A-Za-z0-9_.:\[\]%-]+")
_JOB = re.compile(r"\d+(?:[_+]\d+)?")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_ASKED_SECONDS = 60
_WAITS = "900"
"""Seconds after which an ephemeral container exits."""
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
TARGET_ROOT = "/proc/1/root"
"""Root of the target container's files, as an ephemeral container sees it."""


def local(command: Sequence[str]) -> list[ProgramNode]:
    """Return this node."""
    return [ProgramNode("localhost", tuple(command))]


def urls(texts: Iterable[str], program: Sequence[str]) -> list[ProgramNode]:
    """Return a node for each URL; the local program reads it through fsspec."""
    send = (*program, "collect", "--local", "--no-stacks", "-o", "-", "--")
    return [
        ProgramNode(printable(text.rstrip("/").rpartition("/")[2] or text), (*send, text))
        for text in texts
    ]


def hosts(text: str) -> list[str]:
    """Return the hosts of ``a,b,user@c``, or of ``@FILE`` with one host per line.

    In a file, the rest of a line is ignored, such as ``slots=8``, and so are comments.

    Raises:
        UsageError: No host is named, or a name is not a valid host name.
        InputError: The file cannot be read.
    """
    if text.startswith("@"):
        try:
            with Path(text[1:]).open(encoding="utf-8") as file:
                lines = file.read(_LONGEST_FILE).splitlines()
        except UnicodeDecodeError:
            raise InputError(f"{text[1:]} cannot be read: it is not a text file") from None
        except OSError as error:
            raise InputError(f"{text[1:]} cannot be read: {error}") from None
        names = [line.split("#")[0].split() for line in lines]
        found = [words[0] for words in names if words]
        for number, words in enumerate(names, 1):
            if words and not _is_host(words[0]):
                # Do not quote the line: the wrong file may hold secrets.
                raise UsageError(
                    f"line {number} of {text[1:]} is not a host name", "write one host per line"
                )
    else:
        found = [name.strip() for name in text.split(",") if name.strip()]
        for name in found:
            if not _is_host(name):
                raise UsageError(f"{printable(name)!r} is not a host name")
    if not found:
        raise UsageError("no host is named", "--ssh node1,node2 or --ssh @FILE")
    return list(dict.fromkeys(found))


def _is_host(name: str) -> bool:
    return not name.startswith("-") and bool(_HOST.fullmatch(name))


def ssh(names: Iterable[str], command: Sequence[str], program: str = "") -> list[ProgramNode]:
    """Return nodes that run a command through ssh.

    Args:
        names: Hosts from :func:`hosts`.
        command: The command to run on each host.
        program: ssh with its options, in place of the default.

    Raises:
        UsageError: The program is not a command line.
    """
    try:
        begin = tuple(shlex.split(program)) or _SSH
    except ValueError as error:
        raise UsageError(f"--ssh-command: {error}") from None
    return [ProgramNode(name, (*begin, name, shlex.join(command))) for name in names]


def slurm(job: str, command: Sequence[str], *, stdin: bool = False) -> list[ProgramNode]:
    """Return the nodes of a running job, each reached by its own overlapping job step.

    Args:
        job: Id of the job.
        command: The command to run on each node.
        stdin: Whether the command answers what it reads from stdin.

    Raises:
        UsageError: The text is not a job id.
        InputError: Slurm does not answer, or reports no nodes for the job.
    """
    if not _JOB.fullmatch(job):
        raise UsageError(f"{printable(job)!r} is not a Slurm job id", "--slurm 12345")
    nodes = _ask("squeue", "--noheader", "--states=RUNNING", "--jobs", job, "--format=%N")
    # An array or a heterogeneous job has a line for each part.
    listed = [line.strip() for line in nodes.splitlines() if line.strip()]
    if not listed:
        raise NothingFoundError(f"Slurm job {job} has no nodes", "check with squeue that it runs")
    names = _ask("scontrol", "show", "hostnames", ",".join(listed)).split()
    for name in names:
        if not _is_host(name):
            raise InputError(f"Slurm reports an invalid node name: {printable(name)!r}")
    begin = ["srun", "--overlap", f"--jobid={job}", "--nodes=1", "--ntasks=1", "--quiet"]
    # Otherwise srun holds back what does not end a line, such as the end of a message.
    begin.append("--unbuffered" if stdin else "--input=none")
    return [
        ProgramNode(name, (*begin, f"--nodelist={name}", *command)) for name in dict.fromkeys(names)
    ]


@dataclass(frozen=True)
class Pods:
    """The pods to collect from, and how to enter them.

    Attributes:
        selector: Labels such as ``app=vllm``, or names such as ``pod/a,pod/b``.
        namespace: Their namespace; that of the current context if empty.
        container: The container with the workers; the pod's default if empty.
        image: Image with ncclscope for an ephemeral container; if empty, run in the pod's own
            container.
    """

    selector: str
    namespace: str = ""
    container: str = ""
    image: str = ""

    @property
    def kubectl(self) -> tuple[str, ...]:
        """The kubectl command with its namespace option."""
        return ("kubectl", *(("--namespace", self.namespace) if self.namespace else ()))


def kubernetes(pods: Pods, command: Sequence[str]) -> list[ProgramNode]:
    """Return the pods, each entered by ``kubectl exec`` or by an ephemeral container.

    Raises:
        UsageError: A name is not valid in Kubernetes.
        InputError: kubectl fails, or knows no such pod.
    """
    for name in (pods.namespace, pods.container):
        if name and not _NAME.fullmatch(name):
            raise UsageError(f"{printable(name)!r} is not a valid Kubernetes name")
    if pods.image.startswith("-") or pods.selector.startswith("-"):
        raise UsageError("a selector or an image must not begin with a dash")
    if pods.image and not pods.container:
        raise UsageError(
            "an ephemeral container needs the name of the container to inspect",
            "add --container NAME",
        )
    return [ProgramNode(name, _enter(pods, name, command)) for name in _names(pods)]


def _enter(pods: Pods, name: str, command: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that runs a command in a pod."""
    run = (*pods.kubectl, "exec", name)
    if not pods.image:
        container = (f"--container={pods.container}",) if pods.container else ()
        return (*run, *container, "--", *command)
    # Attaching to a container can miss the start of its output. So the container only sleeps, and
    # the command enters it by `exec`. It ends by itself: Kubernetes cannot remove it.
    own = f"ncclscope-{secrets.token_hex(4)}"
    begin = ("debug", name, f"--image={pods.image}", f"--target={pods.container}")
    start = (*begin, f"--container={own}", "--profile=sysadmin", "--quiet", "--")
    script = (
        f"{shlex.join((*pods.kubectl, *start, 'sleep', _WAITS))} >&2 || exit\n"
        f"until {shlex.join((*run, f'--container={own}', '--', 'true'))} 2>/dev/null\n"
        f"do sleep 0.5\ndone\n"
        f"exec {shlex.join((*run, f'--container={own}', '--', *command))}"
    )
    return ("sh", "-c", script)


def _names(pods: Pods) -> list[str]:
    if pods.selector.startswith("pod/"):
        names = [name.strip().removeprefix("pod/") for name in pods.selector.split(",")]
    else:
        listed = _ask(*pods.kubectl, "get", "pods", f"--selector={pods.selector}", "--output=json")
        names = _running(listed)
        if not names:
            raise NothingFoundError(f"no running pod has the labels {printable(pods.selector)}")
    for name in names:
        if not _NAME.fullmatch(name):
            raise UsageError(f"{printable(name)!r} is not a pod name")
    return list(dict.fromkeys(names))


def _running(listed: str) -> list[str]:
    try:
        items = parse(listed)["items"]
        return [
            str(item["metadata"]["name"])
            for item in items
            if item.get("status", {}).get("phase") == "Running"
        ]
    except (ValueError, TypeError, KeyError, AttributeError, json.JSONDecodeError):
        raise InputError("kubectl did not print a list of pods") from None


def _ask(*command: str) -> str:
    """Run a program and return its stdout.

    Raises:
        InputError: The program is not installed, fails or takes too long.
    """
    try:
        done = run_for_text(command, _ASKED_SECONDS)
    except FileNotFoundError:
        raise InputError(
            f"{command[0]} is not installed here", "run ncclscope on a machine that has it"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{command[0]} does not answer: {error}") from None
    if done.returncode:
        last = last_line(done.stderr) or last_line(done.stdout)
        raise InputError(f"{command[0]} failed: {printable(last) or f'status {done.returncode}'}")
    return done.stdout


def own_command() -> tuple[str, ...]:
    """Return the command that runs this installation; nodes must have it at the same path."""
    return (sys.executable, "-m", "ncclscope")

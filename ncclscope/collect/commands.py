"""The same command on another node: by ssh, Slurm or Kubernetes.

What is to be run is a list of words. ssh hands a text to a shell, hence quotes; the others take
the words. Names of nodes that came from elsewhere never begin with a dash here, which a program
would take for an option.
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

from ncclscope.collect.programs import ProgramNode
from ncclscope.errors import InputError, NothingFoundError, UsageError
from ncclscope.untrusted import parse, printable

__all__ = [
    "TARGET_ROOT",
    "Pods",
    "hosts",
    "kubernetes",
    "local",
    "own_command",
    "slurm",
    "ssh",
    "urls",
]

_HOST = re.compile(r"(?:[A-Za-z0-9_.+-]+@)?[A-Za-z0-9_.:\[\]%-]+")
_JOB = re.compile(r"\d+(?:[_+]\d+)?")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_ASKED_SECONDS = 60
_WAITS = "900"
"""Seconds that an ephemeral container is there for."""
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
TARGET_ROOT = "/proc/1/root"
"""Where an ephemeral container sees the files of the container that it was started for."""


def local(command: Sequence[str]) -> list[ProgramNode]:
    """This node."""
    return [ProgramNode("localhost", tuple(command))]


def urls(texts: Iterable[str], program: Sequence[str]) -> list[ProgramNode]:
    """Return directories that are elsewhere, each in place of a node."""
    send = (*program, "collect", "--local", "--no-stacks", "-o", "-", "--")
    return [
        ProgramNode(printable(text.rstrip("/").rpartition("/")[2] or text), (*send, text))
        for text in texts
    ]


def hosts(text: str) -> list[str]:
    """Return the hosts of ``a,b,user@c``, or of ``@FILE``, a host a line.

    In a file, what follows the name is left aside, such as ``slots=8``, and so are comments.

    Raises:
        UsageError: There is none, or one of them is no name of a host.
        InputError: The file cannot be read.
    """
    if text.startswith("@"):
        try:
            lines = Path(text[1:]).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            raise InputError(f"{text[1:]} cannot be read: it is no text") from None
        except OSError as error:
            raise InputError(f"{text[1:]} cannot be read: {error}") from None
        names = [line.split("#")[0].split() for line in lines]
        found = [words[0] for words in names if words]
        for number, words in enumerate(names, 1):
            if words and not _is_host(words[0]):
                # Not what it says: it may be a file that the wrong name was given for.
                raise UsageError(f"line {number} of {text[1:]} names no host", "give a host a line")
    else:
        found = [name.strip() for name in text.split(",") if name.strip()]
        for name in found:
            if not _is_host(name):
                raise UsageError(f"{printable(name)!r} is no host")
    if not found:
        raise UsageError("no host is named", "--ssh node1,node2 or --ssh @FILE")
    return list(dict.fromkeys(found))


def _is_host(name: str) -> bool:
    return not name.startswith("-") and bool(_HOST.fullmatch(name))


def ssh(names: Iterable[str], command: Sequence[str], program: str = "") -> list[ProgramNode]:
    """Return these hosts, by ssh.

    Args:
        names: From :func:`hosts`.
        command: What to run there.
        program: ssh with its options, in place of ours.
    """
    begin = tuple(shlex.split(program)) or _SSH
    return [ProgramNode(name, (*begin, name, shlex.join(command))) for name in names]


def slurm(job: str, command: Sequence[str]) -> list[ProgramNode]:
    """Return the nodes of a job that runs, each by a step of its own beside the job's.

    Raises:
        UsageError: It is no number of a job.
        InputError: Slurm cannot be asked, or knows no nodes of it.
    """
    if not _JOB.fullmatch(job):
        raise UsageError(f"{printable(job)!r} is no number of a job", "--slurm 12345")
    nodes = _ask("squeue", "--noheader", "--states=RUNNING", "--jobs", job, "--format=%N")
    # An array or a heterogeneous job has a line for each part.
    listed = [line.strip() for line in nodes.splitlines() if line.strip()]
    if not listed:
        raise NothingFoundError(f"Slurm's job {job} has no nodes", "does it run? see squeue")
    names = _ask("scontrol", "show", "hostnames", ",".join(listed)).split()
    for name in names:
        if not _is_host(name):
            raise InputError(f"Slurm names a node {printable(name)!r}")
    begin = ("srun", "--overlap", f"--jobid={job}", "--nodes=1", "--ntasks=1", "--quiet")
    return [
        ProgramNode(name, (*begin, "--input=none", f"--nodelist={name}", *command))
        for name in dict.fromkeys(names)
    ]


@dataclass(frozen=True)
class Pods:
    """Which pods, and how to get into them.

    Attributes:
        selector: Labels, as ``app=vllm``, or names, as ``pod/a,pod/b``.
        namespace: Theirs; that of the current context when empty.
        container: The one with the workers; the pod's default when empty.
        image: Of an ephemeral container to run in, which needs ncclscope; the pod's own
            container is taken when empty.
    """

    selector: str
    namespace: str = ""
    container: str = ""
    image: str = ""

    @property
    def kubectl(self) -> tuple[str, ...]:
        """The program, with the namespace."""
        return ("kubectl", *(("--namespace", self.namespace) if self.namespace else ()))


def kubernetes(pods: Pods, command: Sequence[str]) -> list[ProgramNode]:
    """Return the pods, each by ``kubectl exec`` or by an ephemeral container.

    Raises:
        UsageError: A name is none.
        InputError: kubectl cannot be asked, or knows no such pod.
    """
    for name in (pods.namespace, pods.container):
        if name and not _NAME.fullmatch(name):
            raise UsageError(f"{printable(name)!r} is no name in Kubernetes")
    if pods.image.startswith("-") or pods.selector.startswith("-"):
        raise UsageError("a selector or an image does not begin with a dash")
    if pods.image and not pods.container:
        raise UsageError("an ephemeral container is started for another", "name it: --container")
    return [ProgramNode(name, _enter(pods, name, command)) for name in _names(pods)]


def _enter(pods: Pods, name: str, command: Sequence[str]) -> tuple[str, ...]:
    """Return what runs a command in a pod."""
    run = (*pods.kubectl, "exec", name)
    if not pods.image:
        container = (f"--container={pods.container}",) if pods.container else ()
        return (*run, *container, "--", *command)
    # What is attached to late misses the beginning of the output: the container only waits, and
    # the command goes into it when it runs. It ends by itself; it cannot be taken away again.
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
        told = _ask(*pods.kubectl, "get", "pods", f"--selector={pods.selector}", "--output=json")
        names = _running(told)
        if not names:
            raise NothingFoundError(f"no pod that runs has the labels {printable(pods.selector)}")
    for name in names:
        if not _NAME.fullmatch(name):
            raise UsageError(f"{printable(name)!r} is no name of a pod")
    return list(dict.fromkeys(names))


def _running(told: str) -> list[str]:
    try:
        items = parse(told)["items"]
        return [
            str(item["metadata"]["name"])
            for item in items
            if item.get("status", {}).get("phase") == "Running"
        ]
    except (ValueError, TypeError, KeyError, AttributeError, json.JSONDecodeError):
        raise InputError("kubectl gave no list of pods") from None


def _ask(*words: str) -> str:
    """Return what a program answers.

    Raises:
        InputError: It is not there, fails or takes too long.
    """
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASKED_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise InputError(f"{words[0]} is not installed here", "run it where it is") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{words[0]} does not answer: {error}") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        why = printable(said[0]) if said else f"status {done.returncode}"
        raise InputError(f"{words[0]} failed: {why}")
    return done.stdout


def own_command() -> tuple[str, ...]:
    """Return how this very program is run, where all nodes have it at the same place."""
    return (sys.executable, "-m", "ncclscope")

"""``ncclscope collect``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ncclscope.commands import options
from ncclscope.errors import UsageError

if TYPE_CHECKING:
    from ncclscope.collect.delivery import Delivery, Node
    from ncclscope.collect.node import Wanted

_EPILOG = """\
  $ ncclscope collect --ssh node1,node2 /dev/shm/rings -o hang/
  $ ncclscope collect --slurm 12345 /dev/shm/rings -o hang/
  $ ncclscope collect --kubernetes app=vllm -n serving /dev/shm/rings -o hang/
  $ ncclscope collect --ray /dev/shm/rings -o hang/
  $ ncclscope collect s3://bucket/rings -o hang/
  $ ncclscope diagnose hang/

Each node runs `ncclscope collect --local -o -` and sends rings, dumps, traces and stacks as one
tar.gz. PATH is a path on the nodes (default: $NCCLSCOPE_DIR there, and the rings that processes
have open). A node that fails or exceeds its timeout does not affect the others.

exit status: 0 all nodes delivered, 2 a usage error, or some nodes did not deliver (the output of
             the others is complete)
"""


class CollectCommand:
    """Collect rings, stacks and other evidence from all nodes of a job into one directory."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""
        parser.epilog = _EPILOG
        parser.add_argument(
            "paths", nargs="*", metavar="PATH", help="Directory of rings on the nodes, or a URL"
        )
        parser.add_argument(
            "-o",
            "--output",
            required=True,
            metavar="DIR",
            help="Write to directory DIR, or to a URL",
        )
        where = parser.add_mutually_exclusive_group()
        options.add_flag(where, "--local", "Collect from this node; -o - writes a tar.gz")
        where.add_argument(
            "--ssh", metavar="HOSTS", help="Collect by ssh from node1,user@node2, or from @FILE"
        )
        where.add_argument(
            "--slurm", metavar="JOBID", help="Collect from each node of a job by srun --overlap"
        )
        where.add_argument(
            "--kubernetes",
            metavar="PODS",
            help="Collect from pods with these labels, or from pod/NAME,pod/NAME",
        )
        options.add_flag(where, "--ray", "Collect from each node of a Ray cluster")
        timeout = "Timeout per node in seconds (default: 120)"
        options.add_seconds_option(parser, "--timeout", timeout, 120.0)
        parser.add_argument(
            "--parallel",
            type=int,
            default=32,
            metavar="N",
            help="Collect from N nodes at the same time (default: 32)",
        )
        options.add_flag(parser, "--no-stacks", "Collect files only; skip process stacks")
        gap = "Sample stacks for SECONDS (default: 2 to 10, as `attach`)"
        options.add_seconds_option(parser, "--gap", gap)
        options.add_program_options(
            parser,
            "Start ncclscope on a node by CMD (default: the one that runs here; in a "
            "pod python3 -m ncclscope)",
        )
        parser.add_argument(
            "-n",
            "--namespace",
            default="",
            help="Search the pods in NAMESPACE (default: kubectl's)",
        )
        parser.add_argument(
            "--container",
            default="",
            help="Collect from CONTAINER of each pod (default: the pod's)",
        )
        parser.add_argument("--image", default="", help="Run in an ephemeral container of IMAGE")
        options.add_ray_address_option(parser)
        options.add_json_option(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Collect from all nodes and report each delivery."""
        from ncclscope.collect.node import Wanted

        options.check_seconds(arguments, "timeout", 0.1, 86_400.0)
        options.check_seconds(arguments, "gap", 0.0, 3600.0)
        if not 1 <= arguments.parallel <= 1024:
            raise UsageError("--parallel must be from 1 to 1024")
        wanted = Wanted(tuple(arguments.paths), not arguments.no_stacks, arguments.gap)
        if arguments.local and arguments.output == "-":
            return _send(wanted)
        if arguments.output == "-":
            raise UsageError("only --local can write to stdout", "name a directory with -o DIR")
        return _gather(arguments)


def _send(wanted: Wanted) -> int:
    from ncclscope.collect.node import write_node

    if sys.stdout.isatty():
        raise UsageError("stdout is a terminal, not a file", "redirect it, or name -o DIR")
    write_node(sys.stdout.buffer, wanted, options.say)
    return 0


def _gather(arguments: argparse.Namespace) -> int:
    from ncclscope.collect.delivery import make_target
    from ncclscope.collect.urls import check_target, is_url, store

    nodes = _nodes(arguments)
    if is_url(arguments.output):
        check_target(arguments.output)
        with tempfile.TemporaryDirectory(prefix="ncclscope-") as folder:
            status = _deliver(arguments, nodes, Path(folder))
            store(Path(folder), arguments.output)
        return status
    make_target(Path(arguments.output))
    return _deliver(arguments, nodes, Path(arguments.output))


def _deliver(arguments: argparse.Namespace, nodes: Sequence[Node], target: Path) -> int:
    from ncclscope.collect.delivery import collect
    from ncclscope.private import write_private

    found = collect(
        nodes,
        target,
        timeout=arguments.timeout,
        parallel=arguments.parallel,
        say=lambda delivery: options.say(_line(delivery)),
    )
    document = {
        "schema": 1,
        "directory": arguments.output,
        "delivered": sum(one.status == "delivered" for one in found),
        "nodes": [one.to_dict() for one in found],
    }
    write_private(target / "collect.json", json.dumps(document, indent=2) + "\n")
    if arguments.json:
        options.print_json(document)
    else:
        print(_summary(found, arguments.output))
    return 0 if all(one.status == "delivered" for one in found) else 2


def _nodes(arguments: argparse.Namespace) -> Sequence[Node]:
    from ncclscope.collect import commands
    from ncclscope.collect.urls import is_url

    if arguments.ssh is not None:
        names = commands.hosts(arguments.ssh)
        return commands.ssh(names, _remote(arguments), arguments.ssh_command)
    if arguments.slurm is not None:
        return commands.slurm(arguments.slurm, _remote(arguments))
    if arguments.kubernetes is not None:
        pods = commands.Pods(
            arguments.kubernetes, arguments.namespace, arguments.container, arguments.image
        )
        return commands.kubernetes(pods, _remote(arguments, pods))
    if arguments.ray:
        from ncclscope.collect.ray_nodes import RayNode, connect, members

        ray = connect(arguments.ray_address)
        return [RayNode(ray, member, _remote(arguments)) for member in members(ray)]
    if arguments.local:
        return commands.local(_remote(arguments))
    if arguments.paths and all(is_url(path) for path in arguments.paths):
        return commands.urls(arguments.paths, commands.own_command())
    raise UsageError(
        "no nodes to collect from",
        "name them with --ray, --slurm JOBID, --kubernetes PODS, --ssh HOSTS or --local",
    )


def _remote(arguments: argparse.Namespace, pods: object = None) -> list[str]:
    """Return the command line that each node runs."""
    from ncclscope.collect.commands import TARGET_ROOT, own_command

    paths = list(arguments.paths)
    program = options.own_program(arguments)
    if not program:
        program = ["python3", "-m", "ncclscope"] if pods is not None else list(own_command())
    if arguments.image:
        paths = [TARGET_ROOT + path if path.startswith("/") else path for path in paths]
    words = [*program, "collect", "--local", "-o", "-"]
    if arguments.gap is not None:
        words += ["--gap", f"{arguments.gap:g}"]
    if arguments.no_stacks:
        words.append("--no-stacks")
    return [*words, "--", *paths]


def _line(one: Delivery) -> str:
    if one.status == "delivered":
        notes = "".join(f"; {note}" for note in one.notes)
        return (
            f"{one.node}: {one.files} files, {_size(one.received_bytes)} for "
            f"{_size(one.unpacked_bytes)}, {one.seconds:.1f} s{notes}"
        )
    return f"{one.node}: {'timed out' if one.status == 'timed_out' else 'failed'}: {one.reason}"


def _summary(found: Sequence[Delivery], target: str) -> str:
    good = [one for one in found if one.status == "delivered"]
    lines = [
        f"{len(good)} of {len(found)} nodes delivered, "
        f"{_size(sum(one.received_bytes for one in found))} for "
        f"{_size(sum(one.unpacked_bytes for one in found))}"
    ]
    lines += [_line(one) for one in found if one.status != "delivered"]
    if any(one.files for one in found) and "://" not in target:
        lines.append(f"ncclscope diagnose {target}")
    return "\n".join(lines)


def _size(count: int) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000  # type: ignore[assignment]
    return f"{count:.3g} TB"

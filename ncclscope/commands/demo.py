"""``ncclscope demo``."""

from __future__ import annotations

import argparse
import inspect
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclscope import lab
from ncclscope.commands.options import add_json_option, add_seconds_option, print_json, say
from ncclscope.lab.plan import Program

if TYPE_CHECKING:
    from ncclscope.engine.verdict import Verdict
    from ncclscope.lab.launcher import Laboratory

_STATUSES = "exit status: 0 the verdict names the injected fault, 1 it does not, 2 a usage error\n"
_RECORDED = Program(tp=4, dp=2, seed=0, fault="divergent_dispatch", backend="gloo")
_RECORDING = Path(lab.__file__).parent / "recording"
"""Traces of such a run, for machines without torch."""


class DemoCommand:
    """Reproduce a hang with real processes, kill them, and diagnose it from their rings."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""
        from ncclscope.lab.plan import BACKENDS

        parser.epilog = f"faults:\n{_faults()}\n\n{_STATUSES}"
        parser.add_argument(
            "--fault",
            metavar="NAME",
            default="divergent_dispatch",
            help="Inject fault NAME; see below (default: divergent_dispatch)",
        )
        parser.add_argument(
            "--tp",
            type=int,
            default=4,
            help="Run TP tensor-parallel ranks per replica (default: 4)",
        )
        parser.add_argument(
            "--dp", type=int, default=2, help="Run DP data-parallel replicas (default: 2)"
        )
        parser.add_argument(
            "--seed",
            type=int,
            default=0,
            help="Draw batch sizes, faulty rank and faulty step from SEED (default: 0)",
        )
        parser.add_argument(
            "--backend",
            choices=BACKENDS,
            default="gloo",
            help="Run collectives on this backend (default: gloo)",
        )
        parser.add_argument(
            "--dir", type=Path, help="Keep the rings in DIR, for `ncclscope diagnose`"
        )
        add_json_option(parser, "verdict")
        hang = "Report a hang after SECONDS without progress (default: 3)"
        add_seconds_option(parser, "--stall-after", hang, 3.0)

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the faulty program, kill it, and print the verdict beside the injected fault."""
        program = Program(
            tp=arguments.tp,
            dp=arguments.dp,
            seed=arguments.seed,
            fault=arguments.fault,
            backend=arguments.backend,
        )
        if program == _RECORDED and arguments.dir is None and find_spec("torch") is None:
            return self._replay(program, arguments)
        if arguments.dir is not None:
            return self._reproduce(program, arguments.dir, arguments)
        with tempfile.TemporaryDirectory(prefix="ncclscope-demo-", dir=_memory()) as directory:
            return self._reproduce(program, Path(directory), arguments)

    def _reproduce(self, program: Program, directory: Path, arguments: argparse.Namespace) -> int:
        from ncclscope.engine.verdict import diagnose
        from ncclscope.lab.launcher import Laboratory
        from ncclscope.readers import open_run

        with Laboratory(program, directory) as laboratory:
            _watch(laboratory, arguments.stall_after)
            laboratory.kill()
        run = open_run(directory)
        if arguments.dir is None:
            run = replace(run, sources=("rings, since removed; --dir DIR keeps them",))
        return self._conclude(program, diagnose(run), arguments)

    def _replay(self, program: Program, arguments: argparse.Namespace) -> int:
        """Print the verdict on a recording of the same run."""
        from ncclscope.engine.verdict import diagnose
        from ncclscope.readers import open_run

        say(
            "torch is not installed: this is the recording of an earlier run; after `pip install "
            "torch` demo runs the processes here"
        )
        run = replace(open_run(_RECORDING), sources=("a recording",))
        return self._conclude(program, diagnose(run), arguments, recorded=True)

    def _conclude(
        self,
        program: Program,
        verdict: Verdict,
        arguments: argparse.Namespace,
        *,
        recorded: bool = False,
    ) -> int:
        planted = program.planted()
        named = agrees(verdict, planted)
        if arguments.json:
            more = {"recorded": True} if recorded else {}
            print_json({**verdict.to_dict(), "planted": planted, "agrees": named, **more})
        else:
            _print(verdict, planted, named)
        return 0 if named else 1


def _faults() -> str:
    """Return a list of all faults, each of ours with the first sentence of its description."""
    from ncclscope.lab.faults import FAULTS, fault_names

    names = fault_names()
    width = max(map(len, names)) + 4
    entries = []
    for name in names:
        document = inspect.getdoc(FAULTS[name]) if name in FAULTS else None
        text = " ".join((document or "").partition("\n\n")[0].split())
        start = f"  {name:{width - 2}}"
        entries.append(textwrap.fill(text, 80, initial_indent=start, subsequent_indent=" " * width))
    return "\n".join(entry or f"  {name}" for entry, name in zip(entries, names, strict=True))


def agrees(verdict: Verdict, planted: Mapping[str, Any]) -> bool:
    """Return whether a verdict names the injected fault: kind, ranks and communicator.

    Args:
        verdict: Diagnosis of the rings.
        planted: The fault, from :meth:`ncclscope.lab.plan.Program.planted`.
    """
    if planted["kind"] is None:
        return verdict.status == "ok"
    # A latent fault hangs nothing: it is the first finding, and there is no cause.
    cause = verdict.cause or next(iter(verdict.findings), None)
    if cause is None or cause.kind != planted["kind"]:
        return False
    if list(cause.diverging_ranks) != list(planted["diverging_ranks"]):
        return False
    comm = planted["comm"]
    if comm is None:
        return True
    if cause.comm is None:
        return False
    if cause.kind in ("not_joined", "dead_rank"):
        # A rank that is gone is missing on every communicator that it is a member of.
        return cause.diverging_ranks[0] in cause.comm.ranks
    return list(cause.comm.ranks) == list(comm["ranks"])


def _memory() -> str | None:
    """Return the directory for temporary rings: shared memory, if the machine has it."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _watch(laboratory: Laboratory, stall_after: float) -> None:
    """Show the progress of the ranks until they have ended or no longer move."""
    from rich.progress import Progress as Bars
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    from ncclscope.render.console.terminal import stderr_console

    program = laboratory.program
    console = stderr_console()
    console.print(
        f"{program.world_size} processes, tp={program.tp} dp={program.dp}, {program.backend}, "
        f"fault {program.fault}, seed {program.seed}"
    )
    columns = (SpinnerColumn("line"), TextColumn("{task.description}"), TimeElapsedColumn())
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task("starting the ranks")
        for progress in laboratory.watch(stall_after=stall_after):
            if progress.ready == len(progress.ranks):
                bars.update(
                    task,
                    description=f"step {progress.step} of {program.steps}, "
                    f"{progress.calls} collectives posted",
                )
    end = {
        "stalled": f"nothing has moved for {stall_after:g} s: killing all ranks with SIGKILL",
        "failed": "a rank has died: killing the others with SIGKILL",
        "finished": "all ranks finished",
    }
    console.print(end.get(laboratory.outcome, laboratory.outcome))


def _print(verdict: Verdict, planted: Mapping[str, Any], named: bool) -> None:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from ncclscope.render.console.terminal import stdout_console
    from ncclscope.render.console.verdict import print_verdict

    console = stdout_console()
    print_verdict(verdict, console)
    console.print(Text("\nPLANTED", style="bold"))
    lines = [Text(f"{planted['fault']}: {planted['summary']}")]
    text, style = ("names", "green") if named else ("does not name", "bold red")
    lines.append(Text(f"The verdict {text} it.", style=style))
    console.print(Padding(Group(*lines), (0, 0, 0, 2)))

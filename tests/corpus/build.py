"""Write the corpus: a folder of records for each case, and ``truth.json``."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.corpus.registry import Case, all_cases
from tests.corpus.truth import Truth

__all__ = ["build", "main"]


def build(
    directory: Path, cases: Iterable[Case] | None = None, *, gloo: bool = False
) -> dict[str, Truth]:
    """Write cases into a folder, and return the truth about each by name.

    Args:
        directory: Made where it does not exist; must be empty.
        cases: Those to write; all when absent.
        gloo: Whether to run programs of real processes besides, for a minute or two.

    Raises:
        FileExistsError: The folder holds something.
        RuntimeError: A program of real processes failed.
    """
    chosen = list(all_cases().values()) if cases is None else list(cases)
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise FileExistsError(f"{directory} is not empty")
    truths = {case.name: case.write(directory / case.name) for case in chosen}
    described = {
        case.name: {"title": case.title, "format": case.format, "ranks": case.size}
        for case in chosen
    }
    if gloo:
        from tests.corpus.gloo import play_gloo  # takes torch

        for name, truth in play_gloo(directory / "gloo").items():
            truths[f"gloo/{name}"] = truth
            title = f"program {name} of tests/integration/flight_recorder_programs.py"
            described[f"gloo/{name}"] = {"title": title, "format": "torch", "ranks": 4}
    document = {name: {**described[name], **truth.to_dict()} for name, truth in truths.items()}
    (directory / "truth.json").write_text(json.dumps(document, indent=1) + "\n")
    return truths


def main(arguments: Sequence[str]) -> int:
    """Write the corpus into the folder that the command line names."""
    parser = argparse.ArgumentParser(prog="tests.corpus build", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--gloo", action="store_true", help="run programs of real processes, too")
    given = parser.parse_args(arguments)
    try:
        truths = build(given.directory, gloo=given.gloo)
    except FileExistsError as error:
        print(f"{error}: name another folder", file=sys.stderr)
        return 2
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"the programs of real processes failed: {error}"[:300], file=sys.stderr)
        return 1
    print(f"wrote {len(truths)} cases and truth.json into {given.directory}")
    return 0

"""Long campaigns against the recorder and its readers: ``python -m tests.campaign NAME``.

``kills``      writers with eight threads end by SIGKILL at random moments; nothing that was
               acknowledged may be missing, nothing may be made up
``full``       a file system fills up at a random moment while a program records (root only)
``old-rings``  a directory with the rings of many jobs that are over, and of one that hangs
``processes``  as many ranks as a large job has, each a process with a ring of its own
``clock``      clocks that jump by an hour, forwards and back, on one rank of four
``watched``    a healthy job of eight gloo ranks under guard and watch, with random sleeps, a pause
               of a minute, and ranks that are stopped for seconds and go on
``soak``       two vLLM workers under bursts and pauses, traced, guarded and watched: no alarm, the
               tokens of an untraced server, and memory that does not grow (wants vLLM)
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.campaign.reader import old_rings, processes
from tests.campaign.recorder import clock, full, kills
from tests.campaign.soak import soak
from tests.campaign.watched import watched

CAMPAIGNS: dict[str, tuple[Callable[[int, int], tuple[int, str]], int]] = {
    "kills": (kills, 1000),
    "full": (full, 200),
    "old-rings": (old_rings, 50_000),
    "processes": (processes, 2000),
    "clock": (clock, 200),
    "watched": (watched, 1_000_000),
}


def main() -> int:
    """Return 1 when something came to harm."""
    parser = argparse.ArgumentParser(prog="tests.campaign", description=__doc__)
    parser.add_argument("name", choices=[*CAMPAIGNS, "soak"])
    parser.add_argument("--count", type=int, help="how many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=180.0, help="of the soak (default: 180)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="for the samples of the soak")
    options = parser.parse_args()
    began = time.monotonic()
    if options.name == "soak":
        failed, output = soak(options.minutes, options.seed, options.json)
    else:
        campaign, usual = CAMPAIGNS[options.name]
        failed, output = campaign(options.count or usual, options.seed)
    print(f"{options.name}: {output}; {time.monotonic() - began:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

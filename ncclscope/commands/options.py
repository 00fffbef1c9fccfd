"""Options that several commands take, and output that they share."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Mapping
from typing import Any

from ncclscope.stamp import stamped

__all__ = [
    "add_hang_options",
    "add_json_option",
    "add_ray_options",
    "add_stall_options",
    "print_json",
    "say",
]


def add_json_option(parser: argparse._ActionsContainer, what: str = "result") -> None:
    """Add ``--json``; ``what`` names the content of the document."""
    parser.add_argument(
        "--json", action="store_true", help=f"Print the {what} as one JSON document on stdout"
    )


def print_json(document: Mapping[str, Any]) -> None:
    """Print a JSON document as one line on stdout, with version and time."""
    json.dump(stamped(document), sys.stdout)
    sys.stdout.write("\n")


def say(text: str) -> None:
    """Print a message on stderr, if that is open: a result matters more than a message."""
    with contextlib.suppress(OSError, ValueError):
        print(f"ncclscope: {text}", file=sys.stderr, flush=True)


def add_stall_options(parser: argparse.ArgumentParser) -> None:
    """Add the thresholds in seconds above which a waiting rank is reported as stuck."""
    parser.add_argument(
        "--stall-after",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="Report ranks as stuck that waited SECONDS or more before their process ended "
        "(default: 2)",
    )
    parser.add_argument(
        "--live-stall-after",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="Report ranks as stuck that have waited SECONDS or more in a process that still "
        "runs (default: 10)",
    )


def add_ray_options(parser: argparse.ArgumentParser, help: str) -> None:
    """Add the options that name a Ray cluster; ``help`` describes ``--ray``."""
    parser.add_argument("--ray", action="store_true", help=help)
    parser.add_argument(
        "--ray-address",
        default="auto",
        metavar="ADDRESS",
        help="Connect to the Ray cluster at ADDRESS (default: auto)",
    )


def add_hang_options(parser: argparse.ArgumentParser) -> None:
    """Add what to do at a divergence or hang, besides reporting it."""
    parser.add_argument(
        "--on-hang",
        default="",
        metavar="CMD",
        help="At a divergence or hang, run CMD with the verdict on stdin and the bundle's path in "
        "$NCCLSCOPE_BUNDLE",
    )
    parser.add_argument(
        "--kill-after",
        type=float,
        metavar="SECONDS",
        help="End the workers with SIGKILL once a divergence or hang has lasted for SECONDS",
    )

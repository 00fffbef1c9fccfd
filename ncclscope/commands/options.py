"""Options that several commands take."""

from __future__ import annotations

import argparse

__all__ = ["add_stall_options"]


def add_stall_options(parser: argparse.ArgumentParser) -> None:
    """Adds how long a rank must have waited to count as stuck, dead or alive."""
    parser.add_argument(
        "--stall-after",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="ranks that waited so long before their process ended are stuck (default: 2)",
    )
    parser.add_argument(
        "--live-stall-after",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="the same for processes that still run (default: 30)",
    )

"""Options that several commands take."""

from __future__ import annotations

import argparse

__all__ = ["add_ray_options", "add_stall_options"]


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
        default=10.0,
        metavar="SECONDS",
        help="the same for processes that still run (default: 10)",
    )


def add_ray_options(parser: argparse.ArgumentParser, help: str) -> None:
    """Adds what names a Ray cluster, and how long its nodes are waited for."""
    parser.add_argument("--ray", action="store_true", help=help)
    parser.add_argument(
        "--ray-address", default="auto", metavar="ADDRESS", help="of the cluster (default: auto)"
    )

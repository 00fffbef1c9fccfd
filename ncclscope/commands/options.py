"""Options that several commands take."""

from __future__ import annotations

import argparse

__all__ = ["add_ray_options", "add_stall_options"]


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
        help="Address of the Ray cluster (default: auto)",
    )

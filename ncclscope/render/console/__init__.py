"""Screens of the commands."""

from ncclscope.render.console.verdict import print_verdict

__all__ = ["print_verdict"]

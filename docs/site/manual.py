"""Writes the manual pages from the command line's own parser, as ``make man`` does.

One page for the program and one for each command, so that ``man ncclscope-watch`` and ``watch
--help`` say the same.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from ncclscope import __version__
from ncclscope.__main__ import command_parsers

__all__ = ["main", "manual_page"]


def main(target: Path) -> None:
    """Write one page per command, and one of the program."""
    target.mkdir(parents=True, exist_ok=True)
    program, commands = command_parsers()
    pages = {"ncclscope": program} | {f"ncclscope-{name}": one for name, one in commands.items()}
    for name, parser in pages.items():
        others = [other for other in pages if other != name]
        (target / f"{name}.1").write_text(manual_page(name, parser, others), encoding="utf-8")
    print(f"{len(pages)} pages: man -l {target / 'ncclscope.1'}")


def manual_page(name: str, parser: argparse.ArgumentParser, others: list[str]) -> str:
    """Return a page in the language of man(7).

    Args:
        name: Name of the page.
        parser: Parser of the command.
        others: Further pages, for SEE ALSO.
    """
    about = (parser.description or "").strip()
    usage = " ".join(_plain_usage(parser).split())
    lines = [
        f'.TH {_escaped(name).upper()} 1 "" "ncclscope {__version__}"',
        ".SH NAME",
        _escaped(f"{name} - {about.rstrip('.')}"),
        ".SH SYNOPSIS",
        _escaped(usage),
        ".SH DESCRIPTION",
        _escaped(about),
    ]
    for group in parser._action_groups:
        entries = list(_entries(group))
        if entries:
            lines += [f".SH {_escaped((group.title or 'options').upper())}", *entries]
    if parser.epilog:
        lines += [".SH NOTES", ".nf", *map(_line, str(parser.epilog).strip().splitlines()), ".fi"]
    lines += [".SH SEE ALSO", _escaped(", ".join(f"{other}(1)" for other in sorted(others)))]
    return "\n".join(lines) + "\n"


def _plain_usage(parser: argparse.ArgumentParser) -> str:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    return parser.format_usage().partition(" ")[2]


def _entries(group: argparse._ArgumentGroup) -> Iterator[str]:
    for action in group._group_actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action._choices_actions:
                yield from (".TP", f"\\fB{_escaped(one.dest)}\\fR", _escaped(one.help or ""))
        elif action.help != argparse.SUPPRESS:
            value = action.metavar if isinstance(action.metavar, str) else ""
            words = ", ".join(action.option_strings) or value or action.dest
            shown = f"\\fB{_escaped(words)}\\fR"
            if action.option_strings and value:
                shown += f" \\fI{_escaped(value)}\\fR"
            yield from (".TP", shown, _escaped(action.help or ""))


def _line(text: str) -> str:
    return _escaped(text) or "\\&"


def _escaped(text: str) -> str:
    """Return a text in which roff sees no command."""
    text = text.replace("%%", "%").replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text[:1] in (".", "'") else text


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Formats for build servers: JUnit XML, and GitHub's annotations."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from ncclscope.model.sites import frame_of
from ncclscope.parity.report import Mismatch, Report

_FORBIDDEN = re.compile(
    "[^\t\n\r\u0020-\u007e\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|"
    "[\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
"""Characters that XML 1.0 cannot hold, not even escaped, and those that a terminal acts on."""


def junit(report: Report, verdict_screen: str, baseline_screen: str) -> str:
    """Return JUnit XML: one test case for the ranks' agreement, one for the baseline.

    Args:
        report: Result of the check.
        verdict_screen: Verdict as plain text.
        baseline_screen: Comparison with the baseline as plain text.
    """
    suite = ElementTree.Element("testsuite", name="ncclscope check")
    _case(suite, "ranks agree", not report.agree, _headline(report), verdict_screen)
    if report.baseline is not None:
        name = f"calls equal {report.baseline}"
        case = _case(
            suite, name, report.outcome == "differs", _baseline_line(report), baseline_screen
        )
        if report.outcome == "skipped":
            ElementTree.SubElement(case, "skipped", message="the ranks do not agree")
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    suite.set("errors", "0")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(
    suite: ElementTree.Element, name: str, failed: bool, message: str, screen: str
) -> ElementTree.Element:
    case = ElementTree.SubElement(suite, "testcase", classname="ncclscope", name=_xml(name))
    if failed:
        failure = ElementTree.SubElement(case, "failure", message=_xml(message))
        failure.text = _xml(f"\n{screen}\n")
    return case


def github(report: Report) -> str:
    """Return GitHub's workflow commands, one line per failure; empty without failures.

    Each annotates the line of the program that posts the call, if that is in the repository, and
    otherwise the line of the baseline.
    """
    lines = []
    if not report.agree:
        cause = report.verdict.cause
        title = f"ncclscope: {cause.kind.replace('_', ' ') if cause else report.verdict.status}"
        call = cause.odd if cause is not None else None
        site = None if call is None else call.user_site or call.full_site
        place = ",".join(filter(None, (_place(site), f"title={_property(title)}")))
        lines.append(f"::error {place}::{_data(_headline(report))}")
    for mismatch in report.mismatches if report.outcome == "differs" else ():
        lock = f"file={_property(str(report.baseline))}"
        if mismatch.line is not None:
            lock += f",line={mismatch.line}"
        place = _place(mismatch.site)
        ranks = mismatch.run.ranks if mismatch.run is not None else ()
        text = _baseline_line(report)
        if ranks:
            text += f" on {len(ranks)} of {len(report.verdict.run.ranks)} ranks"
        text += _first_change(mismatch, report.texts)
        if place and mismatch.line is not None:
            text += f" (line {mismatch.line} of {report.baseline})"
        lines.append(f"::error {place or lock},title=ncclscope%3A baseline::{_data(text)}")
    return "".join(f"{line}\n" for line in lines)


def _place(site: str | None) -> str:
    """Return the properties of a line of the program; empty for files of other repositories."""
    frame = frame_of(site)
    if frame is None:
        return ""
    try:
        root = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd()).resolve()
        file = Path(frame["file"]).resolve().relative_to(root)
        if not (root / file).is_file():
            return ""
    except (OSError, ValueError):  # not in the repository, or no longer there
        return ""
    return f"file={_property(str(file))},line={frame['line']}"


def _headline(report: Report) -> str:
    verdict = report.verdict
    if verdict.cause is not None:
        return verdict.cause.summary
    if verdict.run.missing:
        run = verdict.run
        known = run.unrecorded.issuperset(run.missing)
        how = "could not be recorded" if known else "left no record"
        return f"Of {run.expected} ranks {len(run.missing)} {how}."
    return "The ranks agree."


def _baseline_line(report: Report) -> str:
    return f"The calls are not those of {report.baseline}"


def _first_change(mismatch: Mismatch, texts: Sequence[str]) -> str:
    """Return a sentence with the stored and the posted call of the first change."""
    if not mismatch.changes:
        return ""
    change = mismatch.changes[0]
    sides = (
        (mismatch.stored, change.a_start, change.a_stop),
        (mismatch.run, change.b_start, change.b_stop),
    )
    stored, now = (
        texts[section.lines[low]] if section is not None and low < high else "nothing"
        for section, low, high in sides
    )
    return f". First change, call {change.b_start + 1}: {stored} is stored, {now} is posted"


def _xml(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


def _data(text: str) -> str:
    text = _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

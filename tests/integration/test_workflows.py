"""The workflow that users copy, step by step as a build server would run it, and our own."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.documents import Command, Outcome, Session
from tests.support.programs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

WORKFLOW = ROOT / "examples" / "ci_parity" / "workflows" / "parity.yml"
OWN = ROOT / ".github" / "workflows" / "ci.yml"


def steps(path: Path) -> list[dict[str, Any]]:
    document = yaml.safe_load(path.read_text("utf-8"))
    assert document[True]  # what YAML makes of the word `on`
    (job,) = document["jobs"].values()
    assert job["runs-on"] == "ubuntu-latest"
    found: list[dict[str, Any]] = job["steps"]
    assert all(("run" in step) != ("uses" in step) for step in found)
    return found


@dataclass
class Build:
    """Steps that a build server has done.

    Attributes:
        session: Where it works.
        place: The repository.
        failed: Whether a step has failed.
        done: What each step that was run did.
        kept: Files that were kept as an artifact.
    """

    session: Session
    place: Path
    failed: bool = False
    done: list[Outcome] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)


def serve(folder: Path, dispatcher: str) -> Build:
    """Run a workflow as GitHub does, in an environment where everything has been installed.

    Args:
        folder: Empty.
        dispatcher: ``fixed`` or ``buggy``.
    """
    session = Session(folder)
    build = Build(session, session.place / "examples" / "ci_parity")
    for step in steps(WORKFLOW):
        if (step.get("if") == "failure()") != build.failed:
            continue
        if "run" in step and not step["run"].startswith("pip "):
            text = f"cd {build.place} && export DISPATCHER={dispatcher}\n{step['run']}"
            # GitHub's shell ends at the first command that fails.
            (outcome,) = session.run([Command(f"(set -e\n{text}\n)", "")], 100)
            build.done.append(outcome)
            build.failed |= outcome.status != 0
        elif "upload-artifact" in step.get("uses", ""):
            for pattern in step["with"]["path"].split():
                build.kept |= {str(p.relative_to(build.place)) for p in build.place.glob(pattern)}
    return build


def test_a_healthy_program_passes(short_path: Path) -> None:
    build = serve(short_path, "fixed")

    assert [outcome.status for outcome in build.done] == [0, 0, 0], build.done
    assert "the same calls" in build.done[-1].output
    assert build.kept == set()

    # The same run fails where other calls are stored.
    lock = build.place / "program.lock"
    lock.write_text(lock.read_text("utf-8").replace("repeat 3", "repeat 4"))
    check = steps(WORKFLOW)[-3]["run"]
    (outcome,) = build.session.run([Command(f"cd {build.place}\n{check}", "")], 60)
    assert outcome.status == 1
    assert "::error file=program.lock" in outcome.output


def test_a_hang_fails_with_the_verdict_and_leaves_a_page(short_path: Path) -> None:
    build = serve(short_path, "buggy")

    tests, pages = build.done
    assert (tests.status, pages.status) == (1, 0), build.done
    assert "1 failed, 1 passed" in tests.output
    assert "DIVERGED · op mismatch · rank 0" in tests.output
    assert "RoutingPattern(name='no token to a rank'" in tests.output
    assert {"rings", "report.xml"} <= build.kept
    (page,) = build.place.glob("rings/*.html")
    assert "op mismatch" in page.read_text("utf-8")


def test_what_the_workflow_installs_is_offered() -> None:
    installed = [step["run"] for step in steps(WORKFLOW) if step.get("run", "").startswith("pip ")]
    names = {name for line in installed for name in re.findall(r"ncclscope\[(\w+)]", line)}
    offered = metadata.metadata("ncclscope").get_all("Provides-Extra") or []

    assert names
    assert names <= set(offered)


def test_our_own_runs_what_a_build_machine_runs() -> None:
    commands = [step["run"] for step in steps(OWN) if "run" in step]

    assert commands == [".ci/run"]
    assert os.access(ROOT / commands[0], os.X_OK)

"""The workflow that users copy, step by step as a build server would run it, and our own."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from ncclscope import __version__
from tests.support.documents import Command, Outcome, Session
from tests.support.programs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ALWAYS = "${{ !cancelled() }}"
"""The condition of a step that a failed one does not skip."""
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
        if build.failed != (step.get("if") == "failure()") and step.get("if") != ALWAYS:
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
    assert "::error file=dispatcher.py,line=" in outcome.output  # it posts what is repeated
    assert "of program.lock)" in outcome.output


def test_a_hang_fails_with_the_verdict_and_leaves_a_page(short_path: Path) -> None:
    build = serve(short_path, "buggy")

    tests, recorded, checked, pages = build.done
    assert [step.status for step in (tests, recorded, checked, pages)] == [1, 0, 0, 0], build.done
    assert "the same calls" in checked.output
    assert "1 failed, 1 passed" in tests.output
    assert "DIVERGED · op mismatch · rank 0" in tests.output
    assert "RoutingPattern(name='no token to a rank'" in tests.output
    assert {"rings", "report.xml"} <= build.kept
    (page,) = build.place.glob("rings/*.html")
    assert "op mismatch" in page.read_text("utf-8")


def test_what_the_workflow_installs_is_offered() -> None:
    line = installation()
    packages = set(re.findall(r"^pip install \"\$NCCLSCOPE\" (.+)$", line)[0].split())
    required = metadata.requires("ncclscope") or ()
    offered = [one for one in required if re.search(r"extra == .pytest.", one)]

    assert packages == {re.split(r"[<>=; ]", one)[0] for one in offered}


def installation() -> str:
    (line,) = [step["run"] for step in steps(WORKFLOW) if "NCCLSCOPE" in step.get("run", "")]
    return str(line)


@pytest.mark.parametrize("source", ["checkout", "wheel", "index"])
def test_the_workflow_installs_from_any_source(source: str, tmp_path: Path) -> None:
    environment = {**os.environ, "NCCLSCOPE_BUILD": "pure", "PIP_NO_DEPS": "1"}
    # Nothing but ncclscope itself is fetched, and it is built with what is installed here: pip sets
    # its option build_isolation, so that 0 is no isolation.
    environment |= {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    pip = [sys.executable, "-m", "pip"]
    named = str(ROOT)
    if source != "checkout":
        built = [*pip, "wheel", "-q", "-w", str(tmp_path / "dist"), str(ROOT)]
        subprocess.run(built, env=environment, check=True)
        (wheel,) = (tmp_path / "dist").glob("ncclscope-*.whl")
        named = str(wheel) if source == "wheel" else "ncclscope"
        environment["PIP_FIND_LINKS"] = str(tmp_path / "dist")
    target = tmp_path / "installed"
    environment |= {"NCCLSCOPE": named, "PIP_TARGET": str(target)}
    # pytest and hypothesis are packages of an index, and are left out.
    command = installation().replace("pip", shlex.join(pip), 1).partition(" pytest")[0]
    subprocess.run(["bash", "-c", command], env=environment, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "ncclscope", "--version"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"ncclscope {__version__}\n"
    assert (target / "ncclscope" / "lab" / "recording" / "rank-0.jsonl.gz").is_file()


def test_actionlint_accepts_every_workflow() -> None:
    program = Path(sys.executable).parent / "actionlint"
    workflows = [WORKFLOW, *sorted(OWN.parent.glob("*.yml"))]
    assert len(workflows) >= 4
    done = subprocess.run(
        [program, "-oneline", *workflows], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_the_release_asks_for_no_secret_and_attests_what_it_publishes() -> None:
    text = (OWN.parent / "release.yml").read_text("utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    used = [step.get("uses", "").partition("@")[0] for step in jobs["publish"]["steps"]]
    assert "secrets." not in text
    assert jobs["publish"]["permissions"]["id-token"] == "write"
    assert used.index("actions/attest-build-provenance") < used.index("pypa/gh-action-pypi-publish")
    assert "actions/attest-sbom" in used


def test_our_own_runs_what_a_build_machine_runs() -> None:
    commands = [step["run"] for step in steps(OWN) if "run" in step]

    assert commands == [".ci/run"]
    assert os.access(ROOT / commands[0], os.X_OK)

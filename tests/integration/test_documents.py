"""The commands of the documents, run in their order, and what they print."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len

from ncclscope.__main__ import main
from tests.support.documents import Session, blocks, differences, sessions
from tests.support.programs import ROOT

_AT_THE_ROOT = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")]
DOCUMENTS = sorted([*_AT_THE_ROOT, *ROOT.glob("docs/*.md")])
EVERYTHING = [*DOCUMENTS, *sorted(ROOT.glob("examples/**/README.md"))]
WITH_SESSIONS = [path for path in DOCUMENTS if sessions(path.read_text("utf-8"))]

FAST = ("README.md",)
"""Those whose commands take a few seconds."""

_PLACEHOLDERS = {"PID": "1", "JOBID": "1", "SECONDS": "1"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_guides_have_sessions() -> None:
    found = {path.name for path in WITH_SESSIONS}
    assert found >= {"README.md", "operators.md", "vllm-contributors.md", "extending.md"}


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "document",
    [
        pytest.param(path, id=name(path), marks=() if path.name in FAST else pytest.mark.slow)
        for path in WITH_SESSIONS
    ],
)
def test_commands_do_what_the_document_says(document: Path, short_path: Path) -> None:
    commands = sessions(document.read_text("utf-8"))
    wrong = differences(Session(short_path).run(commands, 200))
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.vllm
@pytest.mark.timeout(240)
def test_commands_that_want_vllm_do_what_the_document_says(short_path: Path) -> None:
    text = (ROOT / "docs" / "vllm-contributors.md").read_text("utf-8")
    commands = sessions(text, "console vllm")
    assert commands
    assert differences(Session(short_path).run(commands, 200)) == []


QUOTED = [
    pytest.param(path, info.partition(" ")[2], body, id=f"{name(path)}: {info}")
    for path in EVERYTHING
    for info, body in blocks(path.read_text("utf-8"))
    if "/" in info
]


@pytest.mark.parametrize(("document", "file", "body"), QUOTED)
def test_what_is_quoted_is_in_the_file(document: Path, file: str, body: str) -> None:
    assert body in (ROOT / file).read_text("utf-8"), f"{name(document)} shows another {file}"


def test_the_readme_is_short_and_shows_a_terminal_of_80_columns() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 120
    screens = [body.splitlines() for info, body in blocks(text) if info.startswith("console")]
    lines = [line for screen in screens for line in screen]
    assert max(cell_len(line) for line in lines) == 80
    framed = [line for line in lines if line[0:1] in ("╭", "│", "╰")]
    assert {cell_len(line) for line in framed} == {80}


def test_the_readme_s_program_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = [
        body for info, body in blocks((ROOT / "README.md").read_text("utf-8")) if info == "python"
    ]
    assert "/dev/shm/rings" in program
    exec(program.replace("/dev/shm/rings", str(tmp_path)), {})
    assert capsys.readouterr().out == "incomplete\n"  # rank 2 of 4


def test_enough_is_quoted() -> None:
    assert len(QUOTED) >= 4


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    wrong = []
    for path in EVERYTHING:
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text("utf-8")):
            if re.match(r"https?:", target):
                continue
            file, _, anchor = target.partition("#")
            found = (path.parent / file).resolve() if file else path
            if not found.exists() or (anchor and anchor not in anchors(found)):
                wrong.append(f"{name(path)}: {target}")
    assert not wrong


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub gives a document's headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


def invocations(text: str) -> Iterator[str]:
    """Yield what comes after ``ncclscope`` in each line of code that runs it."""
    text = text.replace("\\\n", " ")
    code = [line for line in text.splitlines() if line.startswith("    ")]
    for info, body in blocks(text):
        if info in ("", "console", "console vllm", "console elsewhere", "sh"):
            code += body.splitlines()
    for line in code:
        # Remarks are far to the right.
        line = re.split(r"\s{2,}|\s#", line.strip().removeprefix("$ "))[0]
        found = re.search(r"(?:^|-- |\b[A-Z_]+=\S+ )(?:python3? -m )?ncclscope (.*)$", line)
        if found and not found[1].startswith("baseline "):  # the first line of a lock file
            yield found[1]


COMMANDS = [
    pytest.param(command, id=f"{name(path)}: {command}")
    for path in EVERYTHING
    for command in dict.fromkeys(invocations(path.read_text("utf-8")))
]


class _Parsed(BaseException):
    """No error: those are reported as the command's own."""


@pytest.mark.parametrize("command", COMMANDS)
def test_options_of_every_command_exist(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [_PLACEHOLDERS.get(word, word) for word in shlex.split(command) if word != "..."]
    words = words[: next((i for i, w in enumerate(words) if w in ("|", ">", "&", "&&")), None)]

    def stop(*_: object) -> int:
        raise _Parsed

    for verb in ("Attach", "Check", "Collect", "Demo", "Diagnose", "Diff", "Doctor", "Export"):
        monkeypatch.setattr(f"ncclscope.commands.{verb.lower()}.{verb}Command.run", stop)
    for verb in ("Prune", "Report", "Run", "Watch"):
        monkeypatch.setattr(f"ncclscope.commands.{verb.lower()}.{verb}Command.run", stop)
    with pytest.raises((_Parsed, SystemExit)) as ended:
        main(words)
    output = capsys.readouterr().err
    assert ended.type is _Parsed or ended.value.code == 0, output  # --help and --version

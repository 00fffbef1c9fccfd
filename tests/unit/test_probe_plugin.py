"""The plugin function that vLLM calls in every process without a guard."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ncclscope import settings


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={"PYTHONPATH": ":".join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


REGISTER = """
    import sys
    from ncclscope_patches.vllm.plugin import register
    register()
    register()
    from ncclscope_patches.importing import ImportHook
    print(sum(isinstance(finder, ImportHook) for finder in sys.meta_path))
"""


@pytest.mark.parametrize("variable", ["NCCLSCOPE_DIR", "NCCL_SCOPE_DIR"])
def test_plugin_waits_for_what_it_patches(tmp_path: Path, variable: str) -> None:
    completed = run(REGISTER, **{variable: str(tmp_path)})

    assert (completed.stdout, completed.stderr, completed.returncode) == ("1\n", "", 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("environment", [{}, {"NCCLSCOPE_DIR": "/rings", "NCCLSCOPE": "0"}])
def test_plugin_does_nothing_when_tracing_is_off(environment: dict[str, str]) -> None:
    completed = run(REGISTER, **environment)

    assert (completed.stdout, completed.stderr, completed.returncode) == ("0\n", "", 0)


def test_plugin_without_variables_imports_nothing_else() -> None:
    program = """
        import sys
        from ncclscope_patches.vllm.plugin import register
        register()
        print(*sorted(name for name in sys.modules if name.startswith("ncclscope")))
    """
    assert run(program).stdout.split() == [
        "ncclscope",
        "ncclscope.settings",
        "ncclscope_patches",
        "ncclscope_patches.vllm",
        "ncclscope_patches.vllm.plugin",
    ]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"NCCLSCOPE_DISPATCH": "fixed"},
            "NCCLSCOPE_DISPATCH has no effect; did you mean NCCLSCOPE_VLLM_DISPATCH?",
        ),
        (
            {"NCCLSCOPE_VLLM_ROUTED_EXPERT": "1"},
            "NCCLSCOPE_VLLM_ROUTED_EXPERT has no effect; "
            "did you mean NCCLSCOPE_VLLM_ROUTED_EXPERTS?",
        ),
        (
            {"NCCLSCOPE_VLLM_CPU_MOE": "true"},
            "NCCLSCOPE_VLLM_CPU_MOE has no effect in this process: "
            "ValueError(\"NCCLSCOPE_VLLM_CPU_MOE='true' is neither 1 nor 0\")",
        ),
    ],
    ids=["name", "letter", "value"],
)
def test_a_misspelt_variable_gets_a_hint(given: dict[str, str], line: str) -> None:
    program = """
        from ncclscope_patches.vllm.plugin import register
        register()
    """
    assert run(program, **given).stderr == f"ncclscope: {line}\n"


def test_every_variable_that_is_read_is_known() -> None:
    """Else a hint would call it a misspelling of another one."""
    read = re.compile(r'(?:settings\.)?variable\("([A-Z_]+)"')
    root = Path(settings.__file__).parents[1]
    texts = [
        file.read_text()
        for folder in ("ncclscope", "patches")
        for file in (root / folder).rglob("*.py")
    ]
    names = {name for text in texts for name in read.findall(text)}

    assert len(names) > 10
    assert names <= {*settings.NAMES}


def test_a_hint_comes_once_a_job_and_not_for_names_of_others() -> None:
    program = """
        import subprocess, sys
        from ncclscope_patches.vllm.plugin import register
        register()
        again = "from ncclscope_patches.vllm.plugin import register; register()"
        subprocess.run([sys.executable, "-c", again], check=True)
    """
    said = run(program, NCCL_SCOPE_DISPATCH="fixed", NCCLSCOPE_TEST_FAULT="/x", NCCL_DEBUG="INFO")
    assert said.stderr.count("\n") == 1
    assert "NCCL_SCOPE_VLLM_DISPATCH" in said.stderr


@pytest.mark.parametrize(
    ("broken", "then"),
    [
        (
            "ncclscope.tracing.session",
            "from ncclscope_patches import registry; registry.apply_all()",
        ),
        ("ncclscope_patches.registry", ""),
    ],
    ids=["session", "registry"],
)
def test_plugin_that_cannot_be_loaded_ends_nobody(tmp_path: Path, broken: str, then: str) -> None:
    program = f"""
        import sys
        sys.modules["{broken}"] = None
        from ncclscope_patches.vllm.plugin import register
        register()
        {then}
        print("goes on")
    """
    completed = run(program, NCCLSCOPE_DIR=str(tmp_path))

    assert completed.stdout == "goes on\n"
    assert completed.returncode == 0
    assert completed.stderr.count("\n") == 1
    assert "tracing is off in this process" in completed.stderr


def test_patches_that_cannot_be_found_end_nobody(tmp_path: Path) -> None:
    program = """
        import sys, types
        from ncclscope_patches import registry
        def find():
            raise RuntimeError("no such thing")
        registry.find = find
        sys.modules["torch"] = types.ModuleType("torch")
        registry.install_all()
        print("goes on")
    """
    completed = run(program, NCCLSCOPE_DIR=str(tmp_path))

    assert completed.stdout == "goes on\n"
    assert "no such thing" in completed.stderr

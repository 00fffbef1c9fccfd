"""The recipes of conda and of the container say what pyproject.toml says."""

from __future__ import annotations

import re
import sys

import yaml

from ncclscope import __version__
from tests.support.programs import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
RECIPE = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text("utf-8"))


def test_conda_installs_what_pip_installs() -> None:
    needed = [f"python {PROJECT['requires-python']}"]
    needed += [re.sub(r"(?=[<>=])", " ", one, count=1) for one in PROJECT["dependencies"]]
    assert sorted(RECIPE["requirements"]["run"]) == sorted(needed)


def test_conda_names_version_licence_and_program() -> None:
    assert RECIPE["context"]["version"] == __version__
    assert RECIPE["about"]["license"] == PROJECT["license"]
    assert RECIPE["about"]["summary"] == PROJECT["description"]
    (name, target), *others = PROJECT["scripts"].items()
    assert not others
    assert RECIPE["build"]["python"]["entry_points"] == [f"{name} = {target}"]


def test_the_container_installs_the_wheels_and_runs_the_program() -> None:
    text = (ROOT / "packaging" / "container" / "Containerfile").read_text("utf-8")
    commands = dict(re.findall(r"^([A-Z]+) (.+)$", text, re.MULTILINE))
    assert commands["COPY"] == "dist/ncclscope-*.whl /wheels/"
    assert commands["ENTRYPOINT"] == '["ncclscope"]'
    (package,) = PROJECT["optional-dependencies"]["gpu"]
    assert package.partition(">")[0] in commands["RUN"]

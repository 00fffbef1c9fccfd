"""Labelled records of known truth: every verdict is right, and its JSON fits the schema."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.corpus.build import build
from tests.corpus.judgement import judge
from tests.corpus.registry import all_cases
from tests.corpus.score import verdict_of
from tests.corpus.truth import Truth
from tests.corpus.writers import FORMATS
from tests.support.examples import EVERYTHING

CASES = all_cases()
SCHEMA = json.loads((files("ncclscope") / "schemas" / "verdict-2.json").read_text())
KINDS = frozenset(SCHEMA["$defs"]["kind"]["enum"])


def one_of_each() -> list[str]:
    """Return one format of each case, in turns: the document does not depend on the format."""
    formats: dict[str, list[str]] = {}
    for name in CASES:
        formats.setdefault(name.partition(".")[0], []).append(name)
    return [names[number % len(names)] for number, names in enumerate(formats.values())]


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    return Draft202012Validator(SCHEMA)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Truth]]:
    """Answers computed so far, by case."""
    return {}


def answer(name: str, tmp_path: Path, documents: dict[str, tuple[Any, Truth]]) -> tuple[Any, Truth]:
    if name not in documents:
        truth = CASES[name].write(tmp_path / "case")
        documents[name] = json.loads(json.dumps(verdict_of(tmp_path / "case"))), truth
    return documents[name]


@pytest.mark.parametrize("name", list(CASES))
def test_verdict_is_what_was_planted(
    name: str, tmp_path: Path, documents: dict[str, tuple[Any, Truth]]
) -> None:
    judged = judge(*answer(name, tmp_path, documents))
    assert judged.word == "right", f"{judged.says}: {judged.problems}"


@pytest.mark.parametrize("name", CASES if EVERYTHING else one_of_each())
def test_json_fits_the_schema(
    name: str,
    tmp_path: Path,
    documents: dict[str, tuple[Any, Truth]],
    validator: Draft202012Validator,
) -> None:
    document, _ = answer(name, tmp_path, documents)
    found = [
        f"{error.json_path}: {error.message}"[:200] for error in validator.iter_errors(document)
    ]
    assert not found


@pytest.mark.parametrize(
    "name", ["left_out.jsonl", "window.jsonl", "left_out.torch-2.13", "healthy_ring.torch-2.15"]
)
def test_case_is_written_the_same_again(name: str, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        CASES[name].write(tmp_path / folder)
    one, two = (sorted((tmp_path / folder).iterdir()) for folder in ("one", "two"))
    assert [path.name for path in one] == [path.name for path in two]
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]
    assert [path.stat().st_mtime_ns for path in one if "rank_" in path.name] == [
        path.stat().st_mtime_ns for path in two if "rank_" in path.name
    ]


def test_builder_writes_the_truth_beside_the_records(tmp_path: Path) -> None:
    chosen = [CASES["absent.rings"], CASES["absent.torch-2.15"]]
    build(tmp_path / "corpus", chosen)
    truth = json.loads((tmp_path / "corpus" / "truth.json").read_text())
    assert truth.keys() == {case.name for case in chosen}
    assert truth["absent.rings"]["status"] == ["hung"]
    assert truth["absent.rings"]["causes"][0]["diverging_ranks"] == [3]
    with pytest.raises(FileExistsError):
        build(tmp_path / "corpus", chosen)


def test_schema_is_one(validator: Draft202012Validator) -> None:
    Draft202012Validator.check_schema(validator.schema)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 1},
        {"status": "fine"},
        {"status": "ok"},
        {"verdict": None},
        {"coverage": {"complete": False, "unseen": [], "comms": []}},
        {"findings": [{"kind": "op_mismatch"}]},
        {"table": [{"rank": -1}]},
    ],
)
def test_schema_refuses_what_the_contract_does_not_allow(
    change: dict[str, Any], tmp_path: Path, validator: Draft202012Validator
) -> None:
    CASES["other_op.jsonl"].write(tmp_path / "case")
    document = verdict_of(tmp_path / "case")
    assert validator.is_valid(document)
    assert not validator.is_valid(document | change)


def test_corpus_holds_each_kind_and_healthy_near_misses() -> None:
    truths = {name: case.truth() for name, case in CASES.items()}
    kinds = {
        kind
        for truth in truths.values()
        for each in (*truth.causes, *truth.optional)
        for kind in each.kinds
    }
    latent = {kind for truth in truths.values() for kind in truth.latent}
    # No case records CPU time; random jobs with ranks that compute do.
    assert kinds | latent >= KINDS - {"late", "not_scheduled", "rpc_stalled"}
    assert len({name.partition(".")[0] for name in CASES}) >= 80
    assert {case.format for case in CASES.values()} == set(FORMATS)
    assert sum(not truth.causes for truth in truths.values()) >= len(CASES) // 4

"""Arrays as text: the same again, what it costs, and what is not believed."""

from __future__ import annotations

import base64
import io
import json
import pickle
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ncclscope.errors import InputError, UsageError
from ncclscope_patches.routed_experts import (
    RoutedExperts,
    RoutingShape,
    StreamReader,
    choice_fields,
    decode_array,
    decode_choice,
    encode_array,
    encoding,
)
from ncclscope_patches.routed_experts.encoding import ENCODINGS
from tests.routed.rows import SHAPE, random_routing, rows
from tests.support.examples import examples

shapes = st.tuples(st.integers(0, 9), st.integers(1, 4), st.integers(1, 4))


@given(
    lengths=shapes,
    name=st.sampled_from(["uint8", "uint16", "int16", "int32", "int64"]),
    encoding=st.sampled_from(ENCODINGS),
    seed=st.integers(0, 99),
)
def test_what_was_written_is_read(
    lengths: tuple[int, int, int], name: str, encoding: str, seed: int
) -> None:
    limits = np.iinfo(name)
    ids = np.random.default_rng(seed).integers(limits.min, limits.max, lengths, name, endpoint=True)
    text = encode_array(ids, encoding)
    again = decode_array(text, encoding)
    assert again.dtype == ids.dtype
    assert again.flags.c_contiguous
    assert np.array_equal(again, ids)
    assert json.loads(json.dumps(text)) == text
    assert len(json.dumps(text)) == len(text) + 2


@given(data=st.binary(max_size=70))
@example(data=b"\xff" * 8)
def test_base85_is_the_usual_one(data: bytes) -> None:
    text = encoding._to_base85(data)
    assert text == base64.b85encode(data).decode()
    assert encoding._from_base85(text) == data


@pytest.mark.parametrize("text", ["~~~~~", '"', "ab\x00cd", "!", "abcde1", "ü"])
def test_other_letters_are_no_base85(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        encoding._from_base85(text)


def test_npy_is_what_vllm_sends() -> None:
    ids = rows(0, 5)
    file = io.BytesIO()
    np.save(file, ids)
    assert encode_array(ids) == base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize(
    ("experts", "npy", "compact"), [(128, 1.34, 1.11), (256, 1.34, 1.26), (512, 1.34, 0.77)]
)
def test_what_it_costs(experts: int, npy: float, compact: float) -> None:
    # Of the array's own size; choices without any pattern.
    ids = random_routing(RoutingShape(24, 8, experts), 400)
    sizes = {name: len(encode_array(ids, name)) / ids.nbytes for name in ENCODINGS}
    assert 4 / 3 < sizes["npy"] < npy
    assert sizes["compact"] < compact


def packed(array: np.ndarray[Any, Any], version: tuple[int, int] = (1, 0)) -> str:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version, allow_pickle=True)
    return base64.b64encode(file.getvalue()).decode()


def header(shape: str, descr: str = "'|u1'", data: bytes = b"") -> str:
    """Return a .npy file that says what it likes."""
    line = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    file = b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line + data
    return base64.b64encode(file).decode()


class Trap:
    """What runs a program where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was loaded",)


def deflated(lengths: str, data: bytes, name: str = "uint8", more: bytes = b"") -> str:
    return f"1:{name}:{lengths}:{encoding._to_base85(zlib.compress(data) + more)}"


HOSTILE: Iterable[tuple[str, str]] = [
    ("npy", ""),
    ("npy", "no base64"),
    ("npy", "ü"),
    ("npy", base64.b64encode(b"\x93NUMPY").decode()),
    ("npy", base64.b64encode(pickle.dumps(Trap())).decode()),
    ("npy", packed(np.array([[[Trap()]]], dtype=object))),
    ("npy", packed(np.zeros((2, 2), np.uint8))),
    ("npy", packed(np.zeros((1, 2, 2), np.float32))),
    ("npy", packed(np.zeros((1, 2, 2), np.uint8), (2, 0))),
    ("npy", header("(1, 2, 3)", data=b"12345")),
    ("npy", header("(1, 2, 3)", data=b"1234567")),
    ("npy", header("(1000000, 1000000, 1000000)")),
    ("npy", header("(-1, -2, 3)", data=b"123456")),
    ("npy", header("(0, 99999999999999999999, 1)")),
    ("npy", header("(1, 2, 3)", "[('a', '|O')]", b"123456")),
    ("npy", header("(1, 2, 3)", "'|i3'", b"123456" * 3)),
    ("npy", header("(1, 2, 3)", "'|O'", b"123456" * 8)),
    ("npy", header("__import__('os')")),
    ("npy", header("(" * 300 + ")" * 300)),
    ("compact", ""),
    ("compact", "1:uint8"),
    ("compact", "2:uint8:1,1,1:" + encoding._to_base85(zlib.compress(b"1"))),
    ("compact", "1:object:1,1,1:"),
    ("compact", "1:uint8:1,1:"),
    ("compact", "1:uint8:a,b,c:"),
    ("compact", "1:uint8:1,1,-1:"),
    ("compact", "1:uint8:1,1,1:"),
    ("compact", "1:uint8:1,1,1:~~~~~"),
    ("compact", "1:uint8:1,1,1:abcde"),
    ("compact", deflated("1,2,3", b"12345")),
    ("compact", deflated("1,2,3", b"1234567")),
    ("compact", deflated("1,2,3", b"123456", more=b"7")),
    ("compact", deflated("1,2,3", b"123456", "uint16")),
    ("compact", deflated("1000000,1000,1", b"123456")),
    ("compact", deflated("1000000,1000000,1000000", b"123456")),
]


@pytest.mark.parametrize(("name", "text"), HOSTILE)
def test_nonsense_is_refused_in_one_line(name: str, text: str) -> None:
    with pytest.raises(InputError, match=f"no routed experts in {name}") as caught:
        decode_array(text, name)
    assert "\n" not in str(caught.value)


@given(name=st.sampled_from(ENCODINGS), at=st.integers(0, 400), letter=st.characters())
@settings(max_examples=examples(300))
def test_a_letter_that_changed_is_noticed_or_harmless(name: str, at: int, letter: str) -> None:
    text = encode_array(rows(0, 20), name)
    at %= len(text)
    try:
        ids = decode_array(text[:at] + letter + text[at + 1 :], name)
    except InputError:
        return
    assert ids.ndim == 3
    assert ids.nbytes <= 20 * SHAPE.token_bytes


@given(text=st.text(max_size=60), name=st.sampled_from(ENCODINGS))
def test_any_text_is_read_or_refused(text: str, name: str) -> None:
    with pytest.raises(InputError):
        decode_array("1:uint8:" + text if name == "compact" else text, name)


def test_arrays_have_a_limit() -> None:
    ids = np.zeros((100, 3, 2), np.uint8)
    for name in ENCODINGS:
        text = encode_array(ids, name)
        assert decode_array(text, name, max_bytes=600).nbytes == 600
        with pytest.raises(InputError, match="600 bytes are more than the 599 that are allowed"):
            decode_array(text, name, max_bytes=599)
        with pytest.raises(InputError):
            decode_choice({"routed_experts": text}, max_bytes=599)


def test_encodings_that_do_not_exist() -> None:
    for call in (lambda: encode_array(rows(0, 1), "pickle"), lambda: decode_array("", "pickle")):
        with pytest.raises(UsageError, match="choose one of npy, compact"):
            call()


def result(tokens: int = 7, prompt: int = 4, first: int = 0) -> RoutedExperts:
    missing = np.zeros(tokens, np.bool_)
    missing[1:3] = missing[-1:] = True
    return RoutedExperts(rows(first, tokens), missing, prompt, first)


@pytest.mark.parametrize("name", ENCODINGS)
def test_an_answer_is_read(name: str) -> None:
    fields = json.loads(json.dumps(choice_fields(result(), name)))
    assert fields["routed_experts_info"] == {
        "encoding": name,
        "first": 0,
        "tokens": 7,
        "prompt_tokens": 4,
        "missing": 3,
        "missing_runs": [[1, 2], [6, 1]],
    }
    again = decode_choice({"index": 0, "text": "...", **fields})
    assert again is not None
    assert np.array_equal(again.ids, rows(0, 7))
    assert again.missing.tolist() == result().missing.tolist()
    assert (again.prompt.tokens, again.generation.tokens) == (4, 3)
    assert again.generation.first == 4
    assert again.generation.missing_runs == ((2, 1),)


def test_an_answer_of_vllm_itself_is_read() -> None:
    plain = decode_choice({"routed_experts": encode_array(rows(0, 5))}, prompt_tokens=3)
    assert plain is not None
    assert (plain.missing_count, plain.prompt.tokens) == (0, 3)


def test_a_request_that_did_not_opt_in_gets_nothing() -> None:
    assert choice_fields(None) == {}
    for choice in ({}, {"routed_experts": None}):
        assert decode_choice(choice) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"routed_experts": 3},
        {"routed_experts_info": []},
        {"encoding": "pickle"},
        {"encoding": ["npy"]},
        {"tokens": 6},
        {"first": -1},
        {"first": "0"},
        {"prompt_tokens": None},
        {"missing": 2},
        {"missing_runs": None},
        {"missing_runs": [[1, 2], [6, 2]]},
        {"missing_runs": [[1, 2], [-1, 1]]},
        {"missing_runs": [[1, 2], [6]]},
        {"missing_runs": [[1, 2], 6]},
        {"missing_runs": [[1, 2], [6, 1.0]]},
    ],
)
def test_an_answer_that_contradicts_itself_is_refused(wrong: dict[str, Any]) -> None:
    choice = choice_fields(result())
    for key, value in wrong.items():
        (choice if key in choice else choice["routed_experts_info"])[key] = value
    with pytest.raises(InputError):
        decode_choice(choice)


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_stream_is_put_together(name: str) -> None:
    reader = StreamReader()
    assert reader.result() is None
    assert reader.add({"delta": {}}) is None
    whole = RoutedExperts(rows(0, 9), np.arange(9) % 4 == 1, 4)
    for first, last in ((0, 5), (5, 5), (5, 8), (8, 9)):
        part = reader.add(choice_fields(whole.part(first, last), name))
        assert part is not None
        assert (part.first, part.tokens) == (first, last - first)
    again = reader.result()
    assert again is not None
    assert np.array_equal(again.ids, whole.ids)
    assert np.array_equal(again.missing, whole.missing)
    assert again.prompt_tokens == 4


def test_a_stream_with_a_hole_is_refused() -> None:
    whole = RoutedExperts(rows(0, 9), np.zeros(9, np.bool_), 4)
    reader = StreamReader(max_bytes=7 * SHAPE.token_bytes)
    reader.add(choice_fields(whole.part(0, 5)))
    with pytest.raises(InputError, match="goes on at token 6, after 5"):
        reader.add(choice_fields(whole.part(6, 9)))
    other = RoutedExperts(whole.ids[5:6, :1], whole.missing[5:6], 4, 5)
    with pytest.raises(InputError, match="about another model"):
        reader.add(choice_fields(other))
    with pytest.raises(InputError, match="longer than"):
        reader.add(choice_fields(whole.part(5, 9)))


@given(missing=st.lists(st.booleans(), max_size=12))
def test_runs_say_the_same_as_the_mask(missing: list[bool]) -> None:
    own = RoutedExperts(rows(0, len(missing)), np.array(missing, np.bool_), 0)
    again = np.zeros(len(missing), np.bool_)
    for first, count in own.missing_runs:
        again[first : first + count] = True
    assert again.tolist() == missing
    assert sum(count for _, count in own.missing_runs) == own.missing_count

"""Routed experts beside vLLM's own scheduler, driven by hand: `make test-vllm`.

Scheduler, KV cache and requests are vLLM's. The workers are played: the routing of a token is a
digest of all tokens up to it, so that a row of any other content, of a rejected draft or of a
token that was sampled again, is known as such wherever it turns up.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")

from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from ncclscope_patches.routed_experts import RoutedExperts, StepDelta
from ncclscope_patches.vllm import routing as vllm_routing
from ncclscope_patches.vllm.routing import scheduling
from ncclscope_patches.vllm.routing.outputs import joined
from ncclscope_patches.vllm.routing.packing import unpack
from ncclscope_patches.vllm.routing.runner import DELTA, opts_in
from tests.integration.tiny_moe import write_checkpoint
from tests.integration.vllm_server import TINY_QWEN3_MOE
from tests.routed.engine import SHAPE, truth

pytestmark = pytest.mark.vllm

BLOCK = 16
BLOCKS = 17
DRAFTS = 3
STEPS = 400


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_checkpoint(directory, TINY_QWEN3_MOE)
    return directory


@pytest.fixture(autouse=True)
def installed() -> None:
    vllm_routing.install()


class Workers:
    """What the workers know, and what they do in a step, in the order of the steps."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.tokens: dict[str, list[int]] = {}
        self.position: dict[str, int] = {}
        self.opted: set[str] = set()
        self.rejected = 0

    def execute(self, output: Any) -> ModelRunnerOutput:
        for name in output.finished_req_ids:
            self.tokens.pop(name, None)
        for new in output.scheduled_new_reqs:
            self.tokens[new.req_id] = list(new.prefill_token_ids or new.prompt_token_ids)
            self.position[new.req_id] = new.num_computed_tokens
            if opts_in(new.sampling_params):
                self.opted.add(new.req_id)
        cached = output.scheduled_cached_reqs
        for place, name in enumerate(cached.req_ids):
            if name in cached.resumed_req_ids:
                self.tokens[name] = list(cached.all_token_ids[name])
                self.position[name] = cached.num_computed_tokens[place]
        sampled, rows = [], {}
        for name, count in output.num_scheduled_tokens.items():
            drafts = [
                self.fresh() if draft < 0 else draft
                for draft in output.scheduled_spec_decode_tokens.get(name, ())
            ]
            first, tokens = self.position[name], self.tokens[name]
            end = first + count - len(drafts)
            assert len(tokens) >= end
            used = tokens[:end] + drafts
            rows[name] = [truth(used[: place + 1]) for place in range(first, first + count)]
            if end < len(tokens):  # a piece of a prompt
                self.position[name] = end
                sampled.append([])
                continue
            accepted = self.chance.randint(0, len(drafts))
            self.rejected += len(drafts) - accepted
            sampled.append([*drafts[:accepted], self.fresh()])
            tokens += sampled[-1]
            self.position[name] = end + accepted
        names = list(output.num_scheduled_tokens)
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=sampled,
        )
        wanted = {
            name: np.array(ids, SHAPE.dtype) for name, ids in rows.items() if name in self.opted
        }
        if wanted:
            setattr(result, DELTA, StepDelta(wanted))
        return result

    def fresh(self) -> int:
        return self.chance.randint(3, 200)


class Engine:
    """vLLM's scheduler, as its engine drives it, and what came out.

    Args:
        model: Directory of a checkpoint.
        depth: Steps in flight; with more than one the scheduler is the asynchronous one.
        drafts: Tokens that are drafted for each request in a step.
        seed: Of all chances.
        flag: Whether vLLM's own flag asks for the routing of all requests.
        window: Whether a second kind of layers has blocks of its own, with a sliding window.
        second: Whether it schedules for the second model runner, to which a request that goes on
            after it lost its blocks is new.
    """

    def __init__(
        self,
        model: Path,
        depth: int,
        drafts: int,
        seed: int,
        *,
        flag: bool = False,
        window: bool = False,
        second: bool = False,
    ) -> None:
        self.chance = random.Random(seed)
        self.workers = Workers(self.chance)
        self.depth, self.drafts = depth, drafts
        speculation = {
            "method": "ngram",
            "num_speculative_tokens": drafts,
            "prompt_lookup_max": 2,
        }
        config = EngineArgs(
            model=str(model),
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=256,
            max_num_batched_tokens=40,
            max_num_seqs=6,
            async_scheduling=False,
            speculative_config=speculation if drafts else None,
            enable_return_routed_experts=flag,
        ).create_engine_config()
        config.cache_config.num_gpu_blocks = BLOCKS
        shape = {"block_size": BLOCK, "num_kv_heads": 2, "head_size": 32, "dtype": "float32"}
        groups = [KVCacheGroupSpec(["layer"], FullAttentionSpec(**shape))]
        if window:  # first, so that the order of the groups decides nothing
            narrow = SlidingWindowSpec(**shape, sliding_window=2 * BLOCK)
            groups.insert(0, KVCacheGroupSpec(["window"], narrow))
        scheduling._shapes.append((config, SHAPE, tuple(range(SHAPE.layers))))
        kind = AsyncScheduler if depth > 1 else Scheduler
        self.scheduler = kind(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=BLOCKS,
                kv_cache_tensors=[],
                kv_cache_groups=groups,
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            hash_block_size=BLOCK,
        )
        self.scheduler.use_v2_model_runner = second
        init_none_hash(hash)
        self.hasher = get_request_block_hasher(BLOCK, lambda part: str(part).encode())
        self.flying: deque[tuple[Any, ModelRunnerOutput]] = deque()
        self.prompts: dict[str, list[int]] = {}
        self.answers: dict[str, list[int]] = {}
        self.found: dict[str, RoutedExperts | None] = {}
        self.ended: set[str] = set()
        self.preempted = 0
        self.computed = 0

    def add(self, prompt: list[int], opted: bool, limit: int, start: int = 0) -> str:
        name = f"r{len(self.prompts)}"
        extra = {"return_routed_experts": True} if opted else None
        parameters = SamplingParams(
            max_tokens=limit, ignore_eos=True, extra_args=extra, routed_experts_prompt_start=start
        )
        request = Request(name, prompt, parameters, None, block_hasher=self.hasher)
        self.scheduler.add_request(request)
        self.prompts[name], self.answers[name], self.found[name] = prompt, [], None
        return name

    def launch(self) -> None:
        output = self.scheduler.schedule()
        self.preempted += len(output.preempted_req_ids or ())
        self.computed += output.total_num_scheduled_tokens
        if output.total_num_scheduled_tokens:
            self.flying.append((output, self.workers.execute(output)))

    def land(self) -> None:
        if not self.flying:
            return
        output, result = self.flying.popleft()
        for of_client in self.scheduler.update_from_output(output, result).values():
            for one in of_client.outputs:
                self._note(one)
        if self.drafts and self.depth == 1:
            names = [name for name in result.req_ids if name in self.scheduler.requests]
            drafts = [[self.workers.fresh() for _ in range(self.drafts)] for _ in names]
            self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))

    def finish(self) -> None:
        """Go on until all requests have ended."""
        for _ in range(5000):
            if not self.scheduler.has_unfinished_requests() and not self.flying:
                self.launch()  # which is when the collector hears of the last ones
                return
            while len(self.flying) < self.depth:
                before = len(self.flying)
                self.launch()
                if len(self.flying) == before:
                    break
            self.land()
        raise AssertionError("requests are left over")

    def abort(self, name: str) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        self.found[name] = None
        self.ended.add(name)

    def _note(self, one: Any) -> None:
        name = one.request_id
        self.answers[name] += one.new_token_ids
        if one.routed_experts is not None:
            earlier = self.found[name]
            first = 0 if earlier is None else earlier.tokens
            part = unpack(one.routed_experts, len(self.prompts[name]), first)
            self.found[name] = joined(earlier, part)
        if one.finish_reason is not None:
            self.ended.add(name)

    def check(self, name: str) -> RoutedExperts:
        """Check all that is not missing of a request that has ended."""
        found = self.found[name]
        assert found is not None
        tokens = self.prompts[name] + self.answers[name]
        assert found.tokens == len(tokens) - 1
        for place in np.flatnonzero(~found.missing).tolist():
            routed = found.ids[place, : SHAPE.layers].tolist()
            assert routed == truth(tokens[: place + 1]), (name, place)
        return found

    def complete(self) -> Iterator[str]:
        """Yield the requests that opted in and were answered."""
        for name in self.prompts:
            if self.found[name] is not None:
                yield name


@pytest.mark.parametrize(("seed", "second"), [(0, False), (1, False), (2, False), (3, True)])
@pytest.mark.parametrize("drafts", [0, DRAFTS])
@pytest.mark.parametrize("depth", [1, 2])
def test_every_row_is_of_the_token_that_counts(
    model: Path, depth: int, drafts: int, seed: int, second: bool
) -> None:
    engine = Engine(model, depth, drafts, seed, second=second)
    chance = engine.chance
    prefixes = [[chance.randint(3, 200) for _ in range(40)] for _ in range(3)]
    for step in range(STEPS):
        event = chance.random()
        if event < 0.12 and len(engine.scheduler.requests) < 8:
            start = chance.choice(prefixes)[: chance.randint(1, 40)]
            tail = [chance.randint(3, 200) for _ in range(chance.randint(1, 40))]
            engine.add(start + tail, chance.random() < 0.7, chance.randint(1, 60))
        elif event < 0.13 and engine.scheduler.requests:
            engine.abort(chance.choice(list(engine.scheduler.requests)))
        if (
            step % 130 == 129
        ):  # as with new weights: all begin anew, and in-flight tokens are dropped
            engine.scheduler.reset_prefix_cache(reset_running_requests=True)
        if len(engine.flying) < depth:
            engine.launch()
        if len(engine.flying) >= depth or chance.random() < 0.3:
            engine.land()
    engine.finish()

    whole = [engine.check(name) for name in engine.complete()]
    assert len(whole) > 10
    assert sum(one.missing_count == 0 for one in whole) > len(whole) / 3
    assert engine.preempted
    assert bool(engine.workers.rejected) == bool(drafts)
    assert not scheduling.collected(engine.scheduler)


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("depth", [1, 2])
def test_nothing_is_missing_where_all_opt_in(model: Path, depth: int, second: bool) -> None:
    engine = Engine(model, depth, 0, 5, second=second)
    shared = [engine.chance.randint(3, 200) for _ in range(50)]
    for number in range(12):
        engine.add(shared[: 10 * (number % 5)] + [number + 3] * 30, opted=True, limit=40)

    engine.finish()

    assert engine.preempted
    assert len(engine.ended) == 12
    assert [engine.check(name).missing_count for name in engine.complete()] == [0] * 12


def test_a_step_that_brings_nothing_leaves_its_tokens_missing(model: Path) -> None:
    engine = Engine(model, 1, 0, 0)
    name = engine.add(list(range(3, 23)), opted=True, limit=5)
    for step in range(5):
        engine.launch()
        if step == 2:
            delattr(engine.flying[0][1], DELTA)
        engine.land()

    assert engine.check(name).missing_runs == ((21, 1),)


def test_rows_that_cannot_be_end_the_collection_and_not_the_engine(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Engine(model, 1, 0, 0)
    name = engine.add(list(range(3, 23)), opted=True, limit=3)
    engine.launch()
    setattr(engine.flying[0][1], DELTA, StepDelta({name: np.zeros((1, 9, 9), np.uint8)}))

    engine.finish()

    assert len(engine.answers[name]) == 3
    assert engine.found[name] is None


@pytest.mark.parametrize("depth", [1, 2])
def test_prefix_hits_of_a_model_with_several_kv_groups_are_found(model: Path, depth: int) -> None:
    engine = Engine(model, depth, 0, 5, window=True)
    prompt = list(range(3, 53))
    engine.add(prompt, opted=True, limit=4)
    engine.finish()
    before = engine.computed
    again = engine.add([*prompt[:48], 9, 9], opted=True, limit=4)

    engine.finish()

    assert engine.computed - before < 48, "there was no hit"
    assert engine.check(again).missing_count == 0


@pytest.mark.parametrize("window", [False, True])
def test_a_prefix_without_routing_is_computed_again_where_all_are_answered(
    model: Path, window: bool
) -> None:
    engine = Engine(model, 1, 0, 0, flag=True, window=window)
    prompt = list(range(3, 36))
    engine.add(prompt, opted=True, limit=2)
    engine.launch()
    delattr(engine.flying[0][1], DELTA)  # the step's rows never come
    engine.finish()
    before = engine.computed

    again = engine.add(prompt, opted=True, limit=2)
    engine.finish()

    assert engine.computed - before >= len(prompt)
    assert engine.check(again).missing_count == 0


def test_the_routing_begins_where_a_request_wants_it(model: Path) -> None:
    engine = Engine(model, 1, 0, 0, flag=True)
    prompt = list(range(3, 36))

    name = engine.add(prompt, opted=True, limit=3, start=30)
    engine.finish()

    found = engine.found[name]
    assert found is not None
    tokens = prompt + engine.answers[name]
    layers = TINY_QWEN3_MOE["num_hidden_layers"]  # of which the workers route in some
    assert found.ids.shape == (5, layers, SHAPE.top_k)
    routed = found.ids[:, : SHAPE.layers].tolist()
    assert routed == [truth(tokens[: place + 1]) for place in range(30, 35)]

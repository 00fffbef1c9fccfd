"""Routed experts in vLLM's second model runner on one GPU, checked against what its routers wrote.

    python -m tests.gpu.second_runner DIRECTORY [STAGE ...]

===========  =================================================================================
``own``      vLLM's own flag, and the runner that it needs; requests one after the other, with
             kernels whose roundings do not depend on the batch
``first``    the first runner and the plugin; the same requests
``second``   the second runner and the plugin; the same requests
``workers``  the same, with the engine and its worker in processes of their own
``load``     the second runner under load: chunked prompts, prefix hits, preemptions. In every
             step a recorder reads the routers' choices, tokens and positions from the device;
             then the same load again without the recorder, which waits for the GPU
``eagle``    the same with drafts of a random EAGLE head, most of which are rejected
``ngram``    the same with drafts that repeat earlier tokens, from vLLM 0.33 on
``weights``  a round of requests, other weights of the norms in place, as between two steps of RL,
             and the same requests again
``asked``    without the flag: half of the requests ask; none of the plugin's calls may wait for
             the GPU
``speed``    tokens a second where all ask and where nobody does, in turns in one engine, whose
             worker is a process of its own
``speed1``   the same with the first runner
===========  =================================================================================

Each stage is a process of its own. All run at once but those of speed, which have the GPU to
themselves. Without a GPU the stages of the second runner need ``tests/support/triton_interpreter``.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.gpu.routing_recorder import Recorder
from tests.integration.tiny_moe import SCALE, write_checkpoint
from tests.integration.vllm_server import TINY_QWEN3_MOE

ALONE = ("own", "first", "second", "workers")
"""Stages in which requests are served one after the other, and whose arrays are compared."""
PAIR = ("own2", "second2")
"""The same with two GPUs, which share layers and experts."""
LOADED = ("load", "eagle", "ngram")
STAGES = (*ALONE, *PAIR, *LOADED, "weights", "asked", "speed", "speed1")
GPU = torch.cuda.is_available()
LARGER = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 2048,
    "vocab_size": 2048,
}
CONFIG = TINY_QWEN3_MOE | (LARGER if GPU else {})
LAYERS, TOP_K = CONFIG["num_hidden_layers"], CONFIG["num_experts_per_tok"]
BLOCK = 16 if GPU else 32
BLOCKS = 60 if GPU else 14
BUDGET = 128 if GPU else 64
REQUESTS = 40 if GPU else 6
NEW_TOKENS = 80 if GPU else 30
DRAFTS = 3
ASKED = {"return_routed_experts": True}


def in_workers() -> bool:
    """Return whether the engine and its worker have processes of their own."""
    return os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "1"


def make_engine(directory: Path, *, flag: bool, drafts: str = "", **more: Any) -> Any:
    """Return an engine of vLLM's in this process, whose cache is too small for its load."""
    from vllm import LLM

    speculation: dict[str, dict[str, Any]] = {
        "eagle": {"model": str(directory / "eagle"), "method": "eagle"},
        "ngram": {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3},
    }
    return LLM(
        str(directory / "model"),
        skip_tokenizer_init=True,
        dtype="bfloat16" if GPU else "float32",
        max_model_len=512 if GPU else 256,
        max_num_seqs=16,
        max_num_batched_tokens=BUDGET,
        block_size=BLOCK,
        enforce_eager=not GPU,
        distributed_executor_backend="mp" if in_workers() else "uni",
        speculative_config={**speculation[drafts], "num_speculative_tokens": DRAFTS}
        if drafts
        else None,
        enable_return_routed_experts=flag,
        **({"gpu_memory_utilization": 0.12, "kv_cache_memory_bytes": 1 << 30} if GPU else {}),
        **{"num_gpu_blocks_override": BLOCKS, **more},
    )


def generate(
    engine: Any, prompts: list[list[int]], tokens: int, asked: Callable[[int], bool] | None = None
) -> list[Any]:
    """Return vLLM's outputs of one round of requests."""
    from vllm import SamplingParams

    parameters = [
        SamplingParams(
            max_tokens=tokens,
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            extra_args=dict(ASKED) if asked and asked(number) else None,
        )
        for number in range(len(prompts))
    ]
    given = [{"prompt_token_ids": prompt} for prompt in prompts]
    found: list[Any] = engine.generate(given, parameters, use_tqdm=False)
    return found


def prompts_of(count: int, seed: int) -> list[list[int]]:
    """Return prompts, of which some share their beginning with others."""
    chosen = np.random.default_rng(seed)

    def draw(length: int) -> list[int]:
        tokens: list[int] = chosen.integers(3, 500, length).tolist()
        return tokens

    shared = [draw(100) for _ in range(3)]
    return [
        draw(int(chosen.integers(3, 150)))
        if number % 2
        else shared[number % 3][: int(chosen.integers(40, 100))] + draw(7)
        for number in range(count)
    ]


def alone(engine: Any, directory: Path, name: str) -> None:
    """Serve requests one after the other, and write what came."""
    written = {}
    for number, prompt in enumerate(prompts_of(12, 5)):
        (answer,) = generate(engine, [prompt], 32)
        (output,) = answer.outputs
        written[f"{number} tokens"] = np.array([*prompt, *output.token_ids])
        written[f"{number} routing"] = output.routed_experts
    np.savez(directory / f"{name}.npz", **written)


def check(answers: list[Any], recorder: Recorder) -> dict[str, int]:
    """Compare each token's experts with those that some step chose for the same prefix."""
    texts = {
        answer.request_id: [*answer.prompt_token_ids, *answer.outputs[0].token_ids]
        for answer in answers
    }
    if recorder.on:
        by_prefix = recorder.by_prefix
        for (name, place, token), found in recorder.seen.items():
            tokens = texts.get(name) or next(
                (text for own, text in texts.items() if name.startswith(f"{own}-")), None
            )
            if tokens and place < len(tokens) and tokens[place] == token:
                by_prefix[tuple(tokens[: place + 1])] |= found
    counts = dict.fromkeys(("tokens", "true", "false", "unknown", "missing", "cached"), 0)
    for answer in answers:
        (output,) = answer.outputs
        tokens, result = texts[answer.request_id], output.routed_experts_result
        assert len(output.routed_experts) == len(tokens) - 1
        counts["cached"] += answer.num_cached_tokens or 0
        for place, row in enumerate(output.routed_experts.tolist()):
            truth = recorder.by_prefix.get(tuple(tokens[: place + 1]))
            counts["tokens"] += 1
            if result.missing[place]:
                counts["missing"] += 1
            elif truth is None:
                counts["unknown"] += 1
            else:
                counts["true" if tuple(map(tuple, row)) in truth else "false"] += 1
    return counts


def loaded(directory: Path, *, drafts: str = "") -> dict[str, Any]:
    """Serve the load with the recorder, and then without it."""
    recorder = Recorder(LAYERS, TOP_K)
    recorder.install()
    engine = make_engine(directory, flag=True, drafts=drafts)
    preempted = count_preemptions()
    prompts = prompts_of(REQUESTS, 7)
    recorder.on = True
    report: dict[str, Any] = {"recorded": check(generate(engine, prompts, NEW_TOKENS), recorder)}
    report |= {name: getattr(recorder, name) for name in ("steps", "graphs", "drafts")}
    report["preempted"] = preempted()
    recorder.on = False
    for number in range(3):
        engine.reset_prefix_cache()
        answers = generate(engine, prompts, NEW_TOKENS)
        report[f"unrecorded {number}"] = check(answers, recorder)
    return report


def reweighted(directory: Path) -> dict[str, Any]:
    """Serve requests, change weights, empty the prefix cache, and serve the same requests again."""
    recorder = Recorder(LAYERS, TOP_K)
    recorder.install()
    engine = make_engine(directory, flag=True)
    prompts = prompts_of(REQUESTS, 7)
    recorder.on = True

    def change(model: torch.nn.Module) -> None:
        drawn = torch.Generator().manual_seed(3)
        for name, weight in model.named_parameters():
            if "norm" in name:
                factor = 0.5 + torch.rand(weight.shape, generator=drawn)
                weight.data.mul_(factor.to(weight))

    before = generate(engine, prompts, NEW_TOKENS)
    report: dict[str, Any] = {"recorded before": check(before, recorder)}
    recorder.forget()
    engine.apply_model(change)
    engine.reset_prefix_cache()
    after = generate(engine, prompts, NEW_TOKENS)
    report["recorded after"] = check(after, recorder)
    # The routing of a prompt depends on the weights and on nothing else.
    rows = [[answer.outputs[0].routed_experts for answer in answers] for answers in (before, after)]
    report["changed"] = sum(
        int((old[: len(prompt)] != new[: len(prompt)]).any(axis=(1, 2)).sum())
        for prompt, old, new in zip(prompts, *rows, strict=True)
    )
    return report


def count_preemptions() -> Callable[[], int]:
    """Return a function that returns how many requests have lost their blocks since."""
    from vllm.v1.core.sched.scheduler import Scheduler

    usual, lost = Scheduler._preempt_request, []

    def preempt(*args: Any, **kwargs: Any) -> Any:
        lost.append(1)
        return usual(*args, **kwargs)

    Scheduler._preempt_request = preempt
    return lambda: len(lost)


def asked_only(directory: Path) -> dict[str, Any]:
    """Let half of the requests ask, with torch's alarm for waits around the plugin's calls."""
    from ncclscope_patches.routed_experts.worker import RoutedExpertsWorker
    from ncclscope_patches.vllm.routing.runner import RunnerRouting

    calls = defaultdict(int)

    def guarded(owner: Any, name: str) -> None:
        usual = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            if GPU:
                torch.cuda.set_sync_debug_mode("error")
            try:
                return usual(*args, **kwargs)
            finally:
                if GPU:
                    torch.cuda.set_sync_debug_mode("default")

        setattr(owner, name, call)

    for name in ("begin", "open", "close"):
        guarded(RunnerRouting, name)
    guarded(RoutedExpertsWorker, "begin_step")
    engine = make_engine(directory, flag=False, num_gpu_blocks_override=2000 if GPU else 40)
    prompts = [prompt[:20] for prompt in prompts_of(32 if GPU else 4, 9)]
    generate(engine, prompts, NEW_TOKENS)
    report: dict[str, Any] = {"captured steps where nobody asks": calls["begin_step"]}
    engine.reset_prefix_cache()
    answers = generate(engine, prompts, NEW_TOKENS, lambda number: number % 2 == 0)
    results = [getattr(one.outputs[0], "routed_experts_result", None) for one in answers]
    report["answered"] = [result is not None for result in results] == [
        number % 2 == 0 for number in range(len(prompts))
    ]
    report["missing"] = sum(result.missing_count for result in results if result is not None)
    report["calls"] = dict(calls)
    return report


def speed(directory: Path) -> dict[str, Any]:
    """Measure rounds in which all ask, and rounds in which nobody does, in turns."""
    engine = make_engine(directory, flag=False, num_gpu_blocks_override=2000 if GPU else 40)
    prompts = [prompt[:20] for prompt in prompts_of(32 if GPU else 4, 9)]
    speeds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(40 if GPU else 2):
        engine.reset_prefix_cache()
        ask, started = number % 2 == 0, time.perf_counter()
        generate(engine, prompts, NEW_TOKENS, lambda _, ask=ask: ask)
        if number >= 8 or not GPU:
            speeds[ask].append(len(prompts) * NEW_TOKENS / (time.perf_counter() - started))
    ratios = [yes / no for yes, no in zip(speeds[True], speeds[False], strict=True)]
    return {
        "nobody asks": round(statistics.median(speeds[False]), 1),
        "all ask": round(statistics.median(speeds[True]), 1),
        "ratios": [round(one, 3) for one in (statistics.median(ratios), min(ratios), max(ratios))],
    }


def run_stage(directory: Path, name: str) -> dict[str, Any]:
    """Run one stage in this process."""
    if os.environ["NCCLSCOPE_VLLM_ROUTED_EXPERTS"]:
        from ncclscope_patches.vllm import routing

        routing.install()
    if name in LOADED:
        return loaded(directory, drafts=name if name != "load" else "")
    if name == "weights":
        return reweighted(directory)
    if name == "asked":
        return asked_only(directory)
    if name.startswith("speed"):
        return speed(directory)
    shared = {"tensor_parallel_size": 2, "enable_expert_parallel": True} if name in PAIR else {}
    engine = make_engine(directory, flag=True, **shared)
    alone(engine, directory, name)
    return {"written": True}


def write_models(directory: Path) -> None:
    """Write a mixture of experts, and an EAGLE head for it, of random weights."""
    from safetensors.numpy import save_file

    for name in ("model", "eagle"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    write_checkpoint(directory / "model", CONFIG)
    head = {
        **{key: value for key, value in CONFIG.items() if "expert" not in key and "mlp" not in key},
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 1,
    }
    (directory / "eagle" / "config.json").write_text(json.dumps(head))
    chosen, hidden = np.random.default_rng(1), CONFIG["hidden_size"]
    queries = CONFIG["num_attention_heads"] * CONFIG["head_dim"]
    keys, inner = CONFIG["num_key_value_heads"] * CONFIG["head_dim"], CONFIG["intermediate_size"]
    sizes = {
        "fc": (hidden, 2 * hidden),
        "layers.0.self_attn.q_proj": (queries, hidden),
        "layers.0.self_attn.k_proj": (keys, hidden),
        "layers.0.self_attn.v_proj": (keys, hidden),
        "layers.0.self_attn.o_proj": (hidden, queries),
        "layers.0.mlp.gate_proj": (inner, hidden),
        "layers.0.mlp.up_proj": (inner, hidden),
        "layers.0.mlp.down_proj": (hidden, inner),
    }
    weights = {
        f"{name}.weight": (SCALE * chosen.standard_normal(size)).astype(np.float32)
        for name, size in sizes.items()
    }
    weights["layers.0.post_attention_layernorm.weight"] = np.ones(hidden, np.float32)
    save_file(weights, directory / "eagle" / "model.safetensors", metadata={"format": "pt"})


def first_runner() -> tuple[str, ...]:
    """Return the stages of the first model runner, which vLLM's own way needs up to 0.31."""
    ours = ("first", "speed1")
    return ours if importlib.util.find_spec("vllm.config.aux_output") else (*ours, "own", "own2")


def environment_of(name: str) -> dict[str, str]:
    """Return the variables of a stage's process."""
    return {
        **os.environ,
        "VLLM_USE_V2_MODEL_RUNNER": "0" if name in first_runner() else "1",
        "NCCLSCOPE_VLLM_ROUTED_EXPERTS": "" if name in ("own", "own2") else "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(name in ("workers", "speed", "speed1", *PAIR))),
        "VLLM_BATCH_INVARIANT": "1" if GPU and name in (*ALONE, *PAIR) else "0",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
    }


def compare(directory: Path, one: str, other: str) -> dict[str, Any]:
    """Compare the arrays of requests that were served one after the other."""
    own, second = (dict(np.load(directory / f"{name}.npz")) for name in (one, other))
    report = {
        "requests": 0,
        "same tokens": 0,
        "same routing": 0,
        "tokens": 0,
        "tokens that differ": 0,
    }
    for name in own:
        if name.endswith("tokens"):
            routing = name.replace("tokens", "routing")
            report["requests"] += 1
            report["same tokens"] += np.array_equal(own[name], second[name])
            report["same routing"] += np.array_equal(own[routing], second[routing])
            report["tokens"] += len(own[routing])
            if own[routing].shape == second[routing].shape:
                differ = (own[routing] != second[routing]).any(axis=(1, 2))
                report["tokens that differ"] += int(differ.sum())
    return report


def main(directory: Path, stages: tuple[str, ...]) -> dict[str, Any]:
    """Run stages, all at once on a GPU, and return what they report."""
    write_models(directory)
    running = {}
    for name in stages:
        command = [sys.executable, "-m", "tests.gpu.second_runner", str(directory), "stage", name]
        if name.startswith("speed"):
            for process in running.values():
                process.wait()
        with (directory / f"{name}.log").open("w") as log:
            running[name] = subprocess.Popen(
                command, env=environment_of(name), stdout=log, stderr=subprocess.STDOUT
            )
        if not GPU:
            running[name].wait()
    statuses = {name: process.wait() for name, process in running.items()}
    report: dict[str, Any] = {"statuses": statuses}
    for name in stages:
        path = directory / f"{name}.json"
        if path.exists():
            report[name] = json.loads(path.read_text())
    for alike in (ALONE, PAIR):
        written = [name for name in alike if (directory / f"{name}.npz").exists()]
        for one, other in itertools.pairwise(written):
            report[f"{one} against {other}"] = compare(directory, one, other)
    return report


if __name__ == "__main__":
    folder = Path(sys.argv[1]).absolute()
    if sys.argv[2:3] == ["stage"]:
        (folder / f"{sys.argv[3]}.json").write_text(json.dumps(run_stage(folder, sys.argv[3])))
    else:
        print(json.dumps(main(folder, tuple(sys.argv[2:]) or STAGES), indent=2))

"""What one command says of a setup, another says of it too: random setups through the whole command line.

A number that two commands print is the same number, so each is asked for in the words of the other.
"""

import shlex
from random import Random
from typing import Any

import pytest

from cli_calls import call, option_words

MODELS = ("smollm2-135m", "qwen3-0.6b", "gemma-3-1b", "granite-4.0-h-1b", "smolvlm-256m", "lfm2-vl-450m", "olmoe-1b-7b")
CARDS = ("l4", "a100-sxm4-80gb", "h100-sxm", "rtx-4090", "t4", "mi300x")
DRAWN: tuple[tuple[str, tuple[Any, ...], float], ...] = (
    ("method", ("full", "lora", "qlora"), 0.6),
    ("micro_batch", (1, 2, 4), 0.3),
    ("grad_accum", (1, 2, 4), 0.2),
    ("num_samples", (500, 100_000), 0.5),
    ("precision", ("fp16", "fp32", "bf16-pure"), 0.15),
    ("optimizer", ("adamw-8bit", "sgd"), 0.2),
    ("expandable_segments", (True,), 0.3),
    ("activation_checkpointing", (True, False), 0.3),
    ("eval_batch", (4,), 0.15),
)
ENGINES: tuple[dict[str, Any], ...] = (
    {},
    {"fsdp": True},
    {"fsdp": True, "flat_parameters": "on-demand"},
    *({"zero_stage": stage} for stage in "0123"),
    {"zero_stage": "3", "offload_optimizer": "cpu", "offload_params": "cpu"},
)
OF_PEOPLE = (
    *("notes", "caveats", "freeze_vision", "to_fit", "with_more_host", "other_machine", "scaling"),
    "reserved_with_room_bytes",
)
"""What an estimate says beside its numbers."""
NUM_SETUPS = 16

Answer = dict[str, Any]


def asked(*words: str) -> Answer | None:
    """The document of an answer; None where it is refused."""
    found = call(*words, "--json")
    return found.document if found.out else None


def numbers(found: Answer | None) -> Answer:
    assert found is not None
    return {name: value for name, value in found.items() if name not in OF_PEOPLE}


def setup(seed: int) -> tuple[Random, dict[str, Any]]:
    """Options of ``estimate`` on several GPUs; the same for the same seed."""
    draw = Random(seed)
    options: dict[str, Any] = {"model": draw.choice(MODELS), "seq_len": draw.choice((1300, 2048))}
    options["gpu"] = f"{draw.choice(CARDS)}:{draw.choice((2, 3, 4, 8))}"
    options |= {name: draw.choice(values) for name, values, often in DRAWN if draw.random() < often}
    return draw, options | draw.choice(ENGINES)


def swept(first: int) -> list[Any]:
    """The first seed, and all others in the sweep."""
    others = (seed for seed in range(NUM_SETUPS) if seed != first)
    return [first, *(pytest.param(seed, marks=pytest.mark.sweep) for seed in others)]


@pytest.mark.parametrize("seed", swept(1))
def test_a_variant_of_a_comparison_is_what_an_estimate_of_its_options_gives(seed: int):
    draw, options = setup(seed)
    name = draw.choice(("zero", "method", "precision", "optimizer", "checkpointing"))
    found = asked("estimate", *option_words(options), "--compare", name)
    variants = [] if found is None else found["variants"]
    for variant in draw.sample(variants, min(3, len(variants))):
        words = option_words(options | variant["options"])
        alone = asked("estimate", *words)
        assert (alone is None) == (variant["estimate"] is None), words
        if alone is not None:
            assert numbers(variant["estimate"]) == numbers(alone), words


@pytest.mark.parametrize("seed", swept(5))
def test_a_point_of_the_scaling_is_what_an_estimate_of_as_many_machines_gives(seed: int):
    draw, options = setup(seed)
    found = asked("estimate", *option_words(options), "--scaling")
    if found is None or found["scaling"] is None:
        return
    recipe = found["recipe"]
    options["method"] = recipe["method"]
    if not recipe["fsdp"]:
        options["zero_stage"] = "none" if recipe["zero_stage"] is None else recipe["zero_stage"]
    for point in draw.sample([*found["scaling"]["strong"], *found["scaling"]["weak"]], 3):
        words = option_words(options | {name: point[name] for name in ("num_nodes", "micro_batch", "grad_accum")})
        alone = numbers(asked("estimate", *words))
        assert (point["verdict"], point["step_seconds"]) == (alone["verdict"], alone["step_seconds"]), words


@pytest.mark.parametrize("seed", swept(8))
def test_what_can_be_trained_of_a_model_is_what_the_fastest_recommendation_has(seed: int):
    draw, drawn = setup(seed)
    on = ("--gpu", drawn["gpu"], "--seq-len", "1300", "--host-ram", str(draw.choice((16, 64))))
    found = asked("models", drawn["model"], *on)
    best = asked("recommend", "--model", drawn["model"], *on, "--objective", "time")
    assert found is not None
    assert best is not None
    plans = {plan["recipe"]["method"]: plan for plan in reversed(best["plans"])}
    ways = found["models"][0]["ways"]
    assert ways.keys() == plans.keys()
    for method, way in ways.items():
        plan, its = plans[method], plans[method]["estimate"]
        assert way["recipe"].items() <= plan["recipe"].items()
        assert (way["device_bytes"], way["host_bytes_per_node"]) == (
            its["peak_device_bytes"],
            its["host_bytes_per_node"],
        )
        assert (way["hours"], way["step_seconds"]) == (plan["hours"], its["step_seconds"])


@pytest.mark.parametrize("seed", swept(8))
def test_what_an_answer_names_to_make_it_fit_and_without_the_encoder_is_what_that_command_gives(seed: int):
    _, options = setup(seed)
    options |= {"model": ("qwen2-vl-2b", "qwen2.5-7b")[seed % 2], "gpu": f"{('l4', 't4')[seed % 3 == 0]}:2"}
    found = asked("estimate", *option_words(options))
    if found is None:
        return
    if found["to_fit"] is not None:
        mended = numbers(asked(*shlex.split(found["to_fit"]["command"])[1:]))
        assert mended["verdict"] == "fits"
        assert mended["peak_device_bytes"] == found["to_fit"]["device_bytes"]
    frozen = found["freeze_vision"]
    if frozen is not None:
        assert frozen.items() <= numbers(asked("estimate", *option_words(options), "--freeze-vision")).items()

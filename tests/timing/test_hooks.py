"""ZeRO-3's hooks: as many calls as transformers and peft make, and adapters never slower than by what they add."""

from dataclasses import replace

import pytest

from planned import cluster, shortened, workload
from vlmplan.estimation import Estimator
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.timing import gpu_rates
from vlmplan.timing.hooks import HookedCalls, hooked_calls
from vlmplan.timing.rates import HOOK_SECONDS, Scenario

NUM_LAYERS, SMALL = 3, {"num_hidden_layers": 3}
WHOLE = 10**12


def trace_of(alias, method, *, checkpoints=False):
    recipe = Recipe(method=method, zero_stage=3, activation_checkpointing=checkpoints)
    files = shortened(alias, **SMALL)
    return Estimator(replace(workload(alias, seq_len=64), model=files), recipe).trace(recipe, (8, 0))


def real_calls(alias, method):
    """(calls of modules with weights, calls of modules without) of a forward of the real model, layers alone."""
    import peft
    import torch

    from vlmplan_trainer.probe import configuration, model_class

    small = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 16, "vocab_size": 128, "layer_types": None, "use_cache": False}  # fmt: skip
    config = configuration({**shortened(alias, **SMALL).config, **small})
    model = model_class(config)(config)
    if method is Method.LORA:
        model = peft.get_peft_model(
            model,
            peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"),
            autocast_adapter_dtype=False,
        )
    counts = [0, 0]
    for name, module in model.named_modules():
        if ".layers." in name:
            has_weights = any(True for _ in module.parameters(recurse=False))
            module.register_forward_pre_hook(
                lambda *_, place=int(not has_weights): counts.__setitem__(place, counts[place] + 1)
            )
    model(input_ids=torch.zeros(1, 3, dtype=torch.long))
    return tuple(counts)


@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize("alias", ["qwen2.5-0.5b", "tinyllama-1.1b", "qwen3-0.6b"])
def test_as_many_modules_are_hooked_as_transformers_and_peft_call(alias, method):
    forward, _, _ = hooked_calls(trace_of(alias, method), WHOLE)
    with_weights, empty = real_calls(alias, method)
    outside = 3  # embedding, last norm and head
    assert (forward.with_weights - outside, forward.empty) == (with_weights, empty)


@pytest.mark.parametrize("checkpoints", [False, True])
def test_checkpointed_layers_call_their_modules_once_more(checkpoints):
    forward, again, backward = hooked_calls(trace_of("tinyllama-1.1b", Method.FULL, checkpoints=checkpoints), WHOLE)
    in_layer, outside = 4 + 3 + 2, 3  # attention, MLP and norms; embedding, last norm, head
    assert (forward.with_weights, forward.empty) == (NUM_LAYERS * in_layer + outside, NUM_LAYERS * 4)
    assert (again.with_weights, again.empty) == ((NUM_LAYERS * in_layer, NUM_LAYERS * 4) if checkpoints else (0, 0))
    assert (backward.with_weights, backward.empty) == (forward.with_weights, forward.empty)
    assert backward.gradients == NUM_LAYERS * in_layer + outside


def test_weights_larger_than_the_threshold_are_gathered_and_those_that_recomputation_gathered_stay_for_backward():
    forward, again, backward = hooked_calls(trace_of("tinyllama-1.1b", Method.FULL, checkpoints=True), 2048)
    assert forward.gathers == NUM_LAYERS * (4 + 3) + 2  # norms stay whole
    assert again.gathers == NUM_LAYERS * (4 + 3)
    assert backward.gathers == 2
    _, _, plain = hooked_calls(trace_of("tinyllama-1.1b", Method.FULL), 2048)
    assert plain.gathers == forward.gathers


def test_seconds_are_calls_by_what_each_takes():
    hooks = gpu_rates(cluster().node.gpu, Recipe(), Scenario.EXPECTED).hooks
    calls = HookedCalls(with_weights=2, empty=3, gathers=5, gradients=7)
    by = {name: seconds.expected for name, seconds in HOOK_SECONDS.items()}
    more = 5 * by["gather"] + 7 * by["gradient"]
    assert calls.seconds(hooks) == pytest.approx(2 * by["forward"] + 3 * by["forward_empty"] + more)
    late = calls._replace(is_backward=True)
    assert late.seconds(hooks) == pytest.approx(2 * by["backward"] + 3 * by["backward_empty"] + more)


# What adapters may cost

KERNELS_PER_PASS = 6
"""Of one adapter, at most: forward has two products, the scale and the sum; backward four products, the gradient of the
scale and the sum of both gradients of the input."""
MOVED_PER_VALUE = 14
"""Bytes per value of the layer's input and output that those of one pass read and write in 16 bits."""


def adapter_seconds(estimator, recipe, on, tokens):
    """The most that the adapters' own operations take in a step: launches, hooks, and bytes that they move."""
    speed = gpu_rates(on.node.gpu, recipe)
    thin = estimator.table.numels
    num_adapters, passes = len(thin) // 2, 3 if recipe.activation_checkpointing else 2
    launches = num_adapters * passes * KERNELS_PER_PASS * (speed.kernel_seconds + speed.ramp_seconds)
    if recipe.activation_checkpointing:
        launches += num_adapters * KERNELS_PER_PASS * sum(speed.checkpoints)
    hooks = speed.hooks
    hooked = 0.0
    if recipe.zero_stage == 3:
        called = 2 * (hooks.forward + hooks.forward_empty + hooks.gather)
        back = 2 * (hooks.backward + hooks.backward_empty + hooks.gather + hooks.gradient)
        hooked = num_adapters * ((passes - 1) * called + back)
    moved = passes * tokens * MOVED_PER_VALUE * sum(thin) / recipe.lora_rank / speed.bytes_per_second
    multiplied = passes * 2 * 2 * tokens * sum(thin) / speed.matmul_flops_per_second
    return launches + hooked + moved + multiplied


@pytest.mark.one_in(3)
@pytest.mark.parametrize("tokens", [256, 1024, 8192])
@pytest.mark.parametrize("stage", [None, 1, 2, 3])
@pytest.mark.parametrize("alias", ["qwen2.5-0.5b", "qwen2-vl-2b", "llama-3.1-8b", "qwen2.5-72b"])
def test_adapters_are_slower_than_all_weights_by_no_more_than_their_own_operations(alias, stage, tokens):
    on = cluster("h100-sxm", 1 if stage is None else 8)
    job = workload(alias, seq_len=tokens, images_per_sample=0)
    full, lora = (Recipe(method=method, zero_stage=stage) for method in (Method.FULL, Method.LORA))
    estimator = Estimator(job, lora)
    whole, adapted = Estimator(job, full).estimate(full, on), estimator.estimate(lora, on)
    own = adapter_seconds(estimator, lora, on, tokens)
    assert adapted.step_seconds <= whole.step_seconds + own

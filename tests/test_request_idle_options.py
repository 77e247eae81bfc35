"""No option is taken and left out: it is refused, named in a note, or changes what is planned."""

import json
from dataclasses import replace
from typing import Any

import click
import pytest

from cli_calls import MENDABLE, USAGE, call
from launch_cases import gpu_plan
from vlmplan.cli.estimate import estimate
from vlmplan.launch.plan_options import request_of
from vlmplan.plan import plan_from_estimate
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import FlatParameters, ShardUnits
from vlmplan.recipe.decided import DecidedRecipe
from vlmplan.request import parse
from vlmplan.request.idle_options import with_engine_of_options
from vlmplan.requested import requested_estimate

ENGINES = {
    "plain PyTorch": ("--gpu", "h100-sxm:1", "--zero-stage", "none"),
    "DDP": ("--gpu", "h100-sxm:2", "--zero-stage", "none"),
    "ZeRO-0": ("--gpu", "h100-sxm:2", "--zero-stage", "0"),
    "ZeRO-3": ("--gpu", "h100-sxm:2", "--zero-stage", "3"),
    "FSDP2": ("--gpu", "h100-sxm:2", "--fsdp", "--grad-accum", "2"),
    "float32": ("--gpu", "h100-sxm:1", "--precision", "fp32"),
    "text": ("--model", "smollm2-135m", "--gpu", "h100-sxm:1"),
}
SWITCHES = {
    str(option.name): (option.opts[0], option.secondary_opts[0])
    for option in estimate.params
    if isinstance(option, click.Option) and option.secondary_opts
}
OF_VALUES = frozenset(("use_rslora",))
"""Switches of the values that adapters have, which take no bytes and no time."""
OF_OTHER_THINGS = frozenset(
    ("calibration", "reentrant_checkpoints", "eval_loss", "liger_layers", "compiled_norms", "fused_adapters")
)
"""Of a measured GPU, of DPO, of an evaluation, and of kernels that no bundled trainer has."""


def answer(*words: str) -> dict[str, Any] | None:
    """What an estimate says of a setup but for the setup itself; None where it is refused."""
    model = () if "--model" in words else ("--model", "smolvlm-256m")
    found = call("estimate", *model, *words, "--json")
    if found.code in (MENDABLE, USAGE):  # such as a switch that the setup has already
        return None
    document = json.loads(found.out)
    return {name: value for name, value in document.items() if name != "recipe"}


@pytest.mark.sweep
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_a_switch_is_refused_named_or_changes_the_plan(engine: str, method: str):
    base = (*ENGINES[engine], "--method", method)
    if answer(*base) is None:
        pytest.skip("this method does not go with the engine")
    ignored = []
    for name in sorted(SWITCHES.keys() - OF_VALUES - OF_OTHER_THINGS):
        on, off = (answer(*base, flag) for flag in SWITCHES[name])
        if on == off is not None:
            ignored.append(name)
    assert not ignored


NAMED = {
    "--zero-stage 2 --autocast": "--autocast has no effect with --zero-stage 2: it is of plain PyTorch in bf16 or fp16",
    "--fsdp --autocast": "--autocast has no effect with --fsdp",
    "--zero-stage none --precision fp32 --autocast": "--autocast has no effect with --precision fp32",
    "--zero-stage 3 --gradients-beside-buckets": "--gradients-beside-buckets has no effect with --zero-stage 3",
    "--zero-stage 1 --gradients-in-buckets": "--gradients-in-buckets has no effect with --zero-stage 1",
    "--orig-params": "--orig-params has no effect without --flat-parameters",
    "--fsdp --orig-params": "--orig-params has no effect without --flat-parameters",
    "--sync-each-batch": "--sync-each-batch has no effect without --fsdp",
    "--reshard-after-forward --zero-stage none": "--reshard-after-forward has no effect without --fsdp",
    "--zero-stage none --precision fp32 --cached-casts": "--cached-casts has no effect with --precision fp32",
    "--method lora --zero-stage none --no-autocast --cached-casts": "--cached-casts has no effect with --no-autocast",
    "--method lora --double-quant": "--double-quant has no effect with --method lora",
    "--freeze-vision": "--freeze-vision has no effect: smollm2-135m has no such part",
    "--train-projector": "--train-projector has no effect: smollm2-135m has no such part",
    "--no-vision-activation-checkpointing": "--no-vision-activation-checkpointing has no effect",
    "--nvme-path /nvme": "--nvme-path /nvme has no effect: nothing is offloaded to NVMe",
    "--no-activation-checkpointing --checkpoint-kind reentrant": (
        "--checkpoint-kind reentrant has no effect with --no-activation-checkpointing"
    ),
    "--eval-batch 2 --no-eval-fused-loss": "--no-eval-fused-loss has no effect without --loss liger",
    "--eval-batch 2 --eval-accumulation 5": "--eval-accumulation 5 has no effect: an evaluation keeps nothing but",
    "--no-activation-checkpointing --method lora --input-gradients all": (
        "--input-gradients all has no effect here: nothing is checkpointed"
    ),
    "--method full --activation-checkpointing --input-gradients all": (
        "--input-gradients all has no effect where embeddings are trained"
    ),
}


@pytest.mark.parametrize("command", ["estimate", "recommend"])
@pytest.mark.parametrize("words", NAMED)
def test_what_a_setup_does_not_have_is_named(words: str, command: str):
    found = call(command, "--model", "smollm2-135m", "--gpu", "h100-sxm:2", *words.split(), "--json")
    assert [note for note in found.document["notes"] if note.startswith(NAMED[words])]


def test_outputs_that_are_kept_are_moved_as_it_is_said():
    words = ("--model", "smollm2-135m", "--gpu", "h100-sxm:1", "--eval-batch", "2", "--eval-accumulation", "5")
    notes = call("estimate", *words, "--eval-keeps", "logits", "--json").document["notes"]
    assert not any("--eval-accumulation" in note for note in notes)


KINDS = {
    "lora-8bit": ("--gpu", "h100-sxm:1", "--method", "lora-8bit", "--zero-stage", "none"),
    "FSDP1": (
        "--gpu",
        "h100-sxm:2",
        "--method",
        "lora",
        *"--fsdp --flat-parameters backward-pre --orig-params".split(),
    ),
    "ZeRO-3": ("--gpu", "h100-sxm:2", "--method", "lora", "--zero-stage", "3"),
    "qlora": ("--gpu", "h100-sxm:1", "--method", "qlora"),
    "DPO": ("--gpu", "h100-sxm:2", "--method", "lora", "--task", "dpo"),
}


@pytest.mark.parametrize("words", [pytest.param(one, id=name, marks=pytest.mark.sweep) for name, one in KINDS.items()])
@pytest.mark.parametrize("switch", ["--activation-checkpointing", "--no-activation-checkpointing"])
def test_a_kind_of_checkpoints_is_named_where_and_only_where_it_changes_nothing(words: tuple[str, ...], switch: str):
    found = []
    for kind in ("reentrant", "non-reentrant"):
        model = ("--model", "smollm2-135m")
        document = call("estimate", *model, *words, switch, "--checkpoint-kind", kind, "--json").document
        notes = document.pop("notes")
        del document["recipe"]
        found.append((document, [note for note in notes if note.startswith(f"--checkpoint-kind {kind} ")]))
    (one, said), (other, said_too) = found
    assert bool(said) == bool(said_too) == (one == other)


def test_a_network_of_one_machine_is_named():
    words = ("estimate", "--model", "smollm2-135m", "--gpu", "h100-sxm:2", "--inter-node-gbit", "400", "--json")
    said = "--inter-node-gbit 400 is of several machines, and --num-nodes is 1: it changes nothing of this plan"
    assert said in call(*words).document["notes"]
    assert said not in call(*words, "--num-nodes", "2").document["notes"]


@pytest.mark.parametrize("option", ["--autocast", "--gradients-in-buckets", "--gradients-beside-buckets"])
def test_an_option_of_plain_pytorch_says_the_engine_where_nobody_does(option: str):
    words = ("--model", "smollm2-135m", "--gpu", "h100-sxm:2", "--method", "full", option, "--json")
    assert call("estimate", *words).document["recipe"]["zero_stage"] == "none"
    assert {plan["recipe"]["zero_stage"] for plan in call("recommend", *words).document["plans"]} == {"none"}


@pytest.mark.parametrize(
    "words",
    [
        {"zero_stage": "2", "uses_autocast": False},
        {"zero_stage": "none", "gradient_as_bucket_view": False},
        {"fsdp": True, "sync_each_batch": False},
        {"zero_stage": "none", "method": "lora"},
    ],
)
def test_a_plan_is_asked_for_again_without_what_its_engine_has_not(words: dict[str, Any]):
    """As ``launch --resume`` and the way out of a shortage do, which write every setting as an option."""
    options = {"model": "smollm2-135m", "gpu": "a100-sxm4-80gb:2", "grad_accum": 2} | words
    planned, _ = requested_estimate(parse(options), ())
    plan = plan_from_estimate(planned)
    again, notes = requested_estimate(request_of(plan, model="smollm2-135m", gpu="a100-sxm4-80gb:2"), ())
    assert again.recipe == planned.recipe
    assert not [note for note in notes if "no effect" in note]


@pytest.mark.parametrize("model", ["whisper-small", "smollm2-135m"])
def test_a_plan_is_asked_for_again_without_parts_that_its_model_has_not(model: str):
    planned, _ = requested_estimate(parse({"model": model, "gpu": "t4:2"}), ())
    again, notes = requested_estimate(request_of(plan_from_estimate(planned), model=model, gpu="t4:2"), ())
    assert again.recipe == planned.recipe
    assert not [note for note in notes if "no effect" in note]


def test_units_of_flat_parameters_are_layers_unless_somebody_says_otherwise():
    flat = DecidedRecipe(fsdp=True, flat_parameters=FlatParameters.BACKWARD_PRE)
    assert with_engine_of_options(flat, flat).shard_units is ShardUnits.LAYERS
    given = replace(flat, shard_units=ShardUnits.LANGUAGE_LAYERS)
    assert with_engine_of_options(given, given) == given
    sharded = replace(flat, flat_parameters=FlatParameters.NONE)
    assert with_engine_of_options(sharded, sharded) == sharded


def test_a_plan_of_one_gpu_is_asked_for_again_without_the_buckets_of_several():
    for num_gpus, said in ((1, None), (2, True)):
        plan = gpu_plan(Recipe(), num_gpus=num_gpus)
        assert request_of(plan, model="smollm2-135m", gpu=f"rtx-4090:{num_gpus}").recipe.gradient_as_bucket_view is said


def test_a_trainer_without_flat_parameters_says_so_and_names_no_units_that_nobody_gave():
    words = ("--model", "smollm2-135m", "--gpu", "l4:2", "--method", "full", "--fsdp", "--flat-parameters", "on-demand")
    found = call("estimate", *words, "--for", "trl")
    assert found.code == MENDABLE
    assert "give --flat-parameters none for FSDP2" in found.err

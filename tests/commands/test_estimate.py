"""``vlmplan estimate``: the contract of ``--json`` and of the options, and that what is printed is the same numbers."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import strategies as st

from cli_calls import DOES_NOT_FIT, DONE, MENDABLE, TINY, USAGE, Call, call, folder_of, refusal, says
from documented_json import documented_keys
from laws import law
from vlmplan.cli.estimate import estimate
from vlmplan.cli.recommend import recommend
from vlmplan.recipe import Recipe
from vlmplan.recipe.from_json import recipe_from_json
from vlmplan.units import GIB, gib_text

COMPONENTS = (
    *("weights", "gradients", "optimizer_states", "activations", "logits", "communication_buffers", "temporaries"),
)
PHASES = ("load", "init", "forward", "backward", "step", "save")
CONTRACT = {
    *("schema", "model", "gpu", "recipe", "verdict", "peak_phase", "components_at_peak", "phases"),
    *("peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes", "host_bytes_per_node", "checkpoint_bytes"),
    *("step_seconds", "tokens_per_second", "samples_per_second"),
}
"""What the first version of schema ``vlmplan.estimate/1`` promised."""
OPTIONS = {
    *("--model", "--gpu", "--num-nodes", "--method", "--lora-rank", "--lora-targets", "--train-embeddings"),
    *("--train-vision", "--freeze-vision", "--train-projector", "--freeze-projector"),
    *("--train-language", "--freeze-language", "--precision", "--optimizer", "--zero-stage", "--ds-config"),
    *("--offload-optimizer", "--offload-params", "--micro-batch", "--grad-accum", "--global-batch", "--seq-len"),
    *("--images-per-sample", "--image-size", "--activation-checkpointing", "--no-activation-checkpointing"),
    *("--vision-activation-checkpointing", "--no-vision-activation-checkpointing", "--attention", "--loss"),
    *("--num-samples", "--epochs", "--catalog", "--json", "--hpz", "--inter-node-gbit"),
}
"""Names that scripts rely on, of estimate and recommend alike."""
SEARCH_OPTIONS = {
    *("--objective", "--max-usd-per-hour", "--max-usd", "--max-hours", "--provider", "--pricing", "--out", "--force"),
}
SETUPS = [
    ("smollm2-135m", "rtx-4090", []),
    ("smollm2-135m", "t4:3", ["--method", "lora", "--num-nodes", "2"]),
    ("qwen2-vl-2b", "rtx-4090", ["--method", "qlora", "--freeze-vision"]),
    ("qwen2-vl-2b", "rtx-4090", []),
    ("qwen2-vl-7b", "h100-sxm:8", ["--zero-stage", "3", "--offload-optimizer", "cpu", "--micro-batch", "2"]),
    ("llama-3.1-70b", "a100-sxm4-80gb:8", ["--zero-stage", "3"]),
    ("mixtral-8x7b", "mi300x:8", ["--method", "lora", "--zero-stage", "2"]),
    ("gemma-3-4b", "h100-sxm:4", ["--zero-stage", "3", "--offload-params", "nvme", "--optimizer", "adamw"]),
    ("gpt2", "v100-sxm2-16gb:2", ["--zero-stage", "0", "--optimizer", "sgd", "--precision", "fp32"]),
    ("qwen2.5-0.5b", "cpu:2", []),
]


def estimated(*words: str) -> Call:
    found = call("estimate", *words)
    assert found.err == ""
    return found


def document(*words: str) -> dict[str, Any]:
    return estimated(*words, "--json").document


@cache
def of_setup(model: str, gpu: str, words: tuple[str, ...]) -> Call:
    """An estimate that depends on nothing but its words."""
    return estimated("--model", model, "--gpu", gpu, *words, "--json")


# -- the schema ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "gpu", "words"), SETUPS)
def test_json_keeps_the_contract(model: str, gpu: str, words: Sequence[str]):
    found = of_setup(model, gpu, tuple(words))
    values = found.document
    assert values.keys() > CONTRACT
    assert values.keys() - {"schema"} == documented_keys("vlmplan.estimate/1")
    assert values["schema"] == "vlmplan.estimate/1"
    assert set(values["model"]) == {"id", "num_params", "num_trainable_params"}
    assert set(values["gpu"]) == {"id", "count", "num_nodes", "usable_bytes"}
    assert tuple(values["components_at_peak"]) == COMPONENTS
    assert [set(phase) for phase in values["phases"]] == [{"name", "resident_bytes", "peak_bytes"}] * len(PHASES)
    assert tuple(phase["name"] for phase in values["phases"]) == PHASES
    assert found.code == (DOES_NOT_FIT if values["verdict"] == "does_not_fit" else DONE)


@pytest.mark.parametrize(("model", "gpu", "words"), SETUPS)
def test_bytes_are_whole_and_add_up(model: str, gpu: str, words: Sequence[str]):
    values = of_setup(model, gpu, tuple(words)).document
    sent = values["collective_bytes"]
    counts = [value for name, value in values.items() if "_bytes" in name and value is not sent]
    counts += [count for kind in sent["by_kind"].values() for count in kind.values()]
    assert sent["per_step"] == sum(kind["bytes"] for kind in sent["by_kind"].values())
    counts += values["components_at_peak"].values()
    counts += [phase[name] for phase in values["phases"] for name in ("resident_bytes", "peak_bytes")]
    assert all(type(count) is int and count >= 0 for count in counts)
    assert sum(values["components_at_peak"].values()) == values["peak_allocated_bytes"]
    peaks = {phase["name"]: phase["peak_bytes"] for phase in values["phases"]}
    assert peaks[values["peak_phase"]] == max(peaks.values()) == values["peak_allocated_bytes"]
    assert all(phase["resident_bytes"] <= phase["peak_bytes"] for phase in values["phases"])
    assert values["peak_allocated_bytes"] <= values["peak_reserved_bytes"] <= values["peak_device_bytes"]


@pytest.mark.parametrize(("model", "gpu", "words"), SETUPS)
def test_the_verdict_is_what_memory_says(model: str, gpu: str, words: Sequence[str]):
    values = of_setup(model, gpu, tuple(words)).document
    free_bytes = values["gpu"]["usable_bytes"] - values["peak_device_bytes"]
    if values["verdict"] == "fits":
        assert free_bytes >= values["reserve_bytes"]
    elif values["verdict"] == "tight":
        assert 0 <= free_bytes < values["reserve_bytes"]
    else:
        assert values["verdict"] == "does_not_fit"
        assert free_bytes < 0 or gpu.startswith("cpu")  # there the host's memory can be short too


@pytest.mark.parametrize(("model", "gpu", "words"), SETUPS)
def test_the_recipe_says_every_option_and_can_be_read_back(model: str, gpu: str, words: Sequence[str]):
    values = of_setup(model, gpu, tuple(words)).document
    recipe = dict(values["recipe"])
    workload = ("model", "seq_len", "images_per_sample", "image_size", "num_samples", "epochs", "global_batch")
    assert {name: recipe.pop(name) for name in workload}["model"] == model
    assert [recipe.pop(name) for name in ("sample_len", "audios_per_sample", "audio_seconds")] == [None, 0, None]
    read = recipe_from_json(recipe)
    assert read.as_json() == recipe
    num_gpus = values["gpu"]["count"] * values["gpu"]["num_nodes"]
    assert values["recipe"]["global_batch"] == read.micro_batch * read.grad_accum * num_gpus
    for option in OPTIONS - {"--gpu", "--num-nodes", "--inter-node-gbit", "--ds-config", "--catalog", "--json"}:
        name = option.removeprefix("--").replace("no-", "").replace("freeze-", "train-").replace("-", "_")
        assert name in values["recipe"]


def test_rates_are_of_one_step():
    values = document("--model", "qwen2-vl-2b", "--gpu", "a100-sxm4-80gb:2", "--micro-batch", "3", "--grad-accum", "5")
    samples = 2 * 3 * 5
    assert values["samples_per_second"] == pytest.approx(samples / values["step_seconds"])
    assert values["tokens_per_second"] == pytest.approx(samples * 1024 / values["step_seconds"])
    assert sum(values["step_seconds_by_part"].values()) == pytest.approx(values["step_seconds"])


def test_what_is_not_known_is_null():
    values = document("--model", "qwen2.5-0.5b", "--gpu", "cpu:1")
    names = ("step_seconds", "step_seconds_by_part", "tokens_per_second", "samples_per_second")
    assert [values[name] for name in names] == [None] * len(names)


# -- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [estimate, recommend], ids=["estimate", "recommend"])
def test_every_promised_option_is_there_and_explained(command: click.Command):
    named = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    promised = OPTIONS | (SEARCH_OPTIONS if command is recommend else set())
    assert promised <= named
    shown = CliRunner().invoke(command, ["--help"])
    assert shown.exit_code == DONE
    assert all(name in shown.output for name in promised)


GIVEN: list[tuple[str, Sequence[str], str, Any]] = [
    ("seq_len", ["--seq-len", "2048"], "", 2048),
    ("images_per_sample", ["--images-per-sample", "2"], "", 2),
    ("image_size", ["--image-size", "224x280"], "", "224x280"),
    ("num_samples", ["--num-samples", "77"], "", 77),
    ("epochs", ["--epochs", "2.5"], "", 2.5),
    ("global_batch", ["--global-batch", "6"], "", 6),
    ("micro_batch", ["--micro-batch", "3"], "", 3),
    ("grad_accum", ["--grad-accum", "5"], "", 5),
    ("method", ["--method", "qlora"], "", "qlora"),
    ("lora_rank", ["--lora-rank", "7"], "lora", 7),
    ("lora_targets", ["--lora-targets", "q_proj,v_proj"], "lora", "q_proj,v_proj"),
    ("lora_alpha", ["--lora-alpha", "35"], "lora", 35),
    ("lora_dropout", ["--lora-dropout", "0.25"], "lora", 0.25),
    ("use_rslora", ["--use-rslora"], "qlora", True),
    ("adapter_dtype", ["--adapter-dtype", "float32"], "lora", "float32"),
    ("adapter_dtype", ["--adapter-dtype", "model"], "lora", "model"),
    ("weight_dtype", ["--weight-dtype", "float32", "--zero-stage", "none"], "lora", "float32"),
    ("weight_dtype", ["--weight-dtype", "model", "--zero-stage", "none"], "full", "model"),
    ("uses_autocast", ["--no-autocast"], "lora", False),
    ("use_double_quant", ["--no-double-quant"], "qlora", False),
    ("train_embeddings", ["--train-embeddings"], "lora", True),
    ("train_vision", ["--freeze-vision"], "", False),
    ("train_projector", ["--freeze-projector"], "", False),
    ("train_language", ["--freeze-language"], "", False),
    ("precision", ["--precision", "fp32"], "", "fp32"),
    ("optimizer", ["--optimizer", "adafactor"], "", "adafactor"),
    ("zero_stage", ["--zero-stage", "none"], "", "none"),
    ("zero_stage", ["--zero-stage", "1"], "", 1),
    ("offload_optimizer", ["--offload-optimizer", "cpu"], "", "cpu"),
    ("offload_params", ["--offload-params", "cpu"], "", "cpu"),
    ("activation_checkpointing", ["--no-activation-checkpointing"], "", False),
    ("vision_activation_checkpointing", ["--no-vision-activation-checkpointing"], "", False),
    ("attention", ["--attention", "eager"], "", "eager"),
    ("loss", ["--loss", "full"], "", "full"),
]


def test_what_only_stage_3_does_has_stage_3_where_no_engine_is_named():
    given = ("--model", "smollm2-135m", "--gpu", "a100-sxm4-80gb:2")
    recipes = [document(*given, *words)["recipe"] for words in (("--offload-params", "cpu"), ("--hpz", "2"), ())]
    assert [(recipe["zero_stage"], recipe["hpz"]) for recipe in recipes] == [(3, 1), (3, 2), (2, 1)]
    assert "--zero-stage" not in refusal("estimate", *given, "--fsdp", "--hpz", "2")


OF_VISION = {"images_per_sample", "image_size", "vision_activation_checkpointing", "lora_targets", "method"}
OF_VISION |= {"train_vision", "train_projector", "train_language"}
"""What is tried with a vision model, which takes longer, because it needs one or because parts of it may differ."""


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "words", "method", "value"), GIVEN)
def test_an_option_that_is_given_is_held_by_estimate_and_by_every_plan(
    name: str, words: Sequence[str], method: str, value: Any
):
    words = [*words, *(["--method", method] if method else [])]
    sees = name in OF_VISION
    common = ("--model", "qwen2-vl-2b" if sees else "smollm2-135m", "--gpu", "a100-sxm4-80gb:1", *words, "--json")
    assert document(*common[:-1])["recipe"][name] == value
    found = call("recommend", *common)
    plans = found.document["plans"]
    assert [plan["recipe"][name] for plan in plans] == [value] * len(plans)
    assert plans


def test_without_options_a_run_is_full_fine_tuning_as_the_defaults_say():
    recipe = document("--model", "qwen2-vl-2b", "--gpu", "a100-sxm4-80gb")["recipe"]
    plain = Recipe(fuses_optimizer=False, caches_casts=True, expandable_segments=False).as_json()
    assert {name: recipe[name] for name in plain} == plain
    assert (recipe["seq_len"], recipe["image_size"], recipe["num_samples"]) == (1024, "448x448", 10_000)


def test_several_gpus_train_under_zero_2_unless_told_otherwise():
    assert document("--model", "smollm2-135m", "--gpu", "t4:2")["recipe"]["zero_stage"] == 2
    words = ("--model", "smollm2-135m", "--gpu", "t4", "--num-nodes", "2")
    assert document(*words)["recipe"]["zero_stage"] == 2


def test_sequences_longer_than_the_model_was_made_for_are_noted():
    folder_of("model", TINY)
    words = ("--model", "./model", "--gpu", "t4", "--seq-len")
    assert not [note for note in document(*words, "256")["notes"] if "--seq-len" in note]
    (note,) = [note for note in document(*words, "257")["notes"] if "--seq-len" in note]
    assert "257" in note
    assert "256" in note


@pytest.mark.sweep
@law(
    quick=6,
    thorough=20,
    micro_batch=st.integers(1, 4),
    grad_accum=st.integers(1, 4),
    num_gpus=st.integers(1, 4),
    num_nodes=st.integers(1, 2),
)
def test_the_global_batch_is_the_product_and_asking_for_it_changes_nothing(
    micro_batch: int, grad_accum: int, num_gpus: int, num_nodes: int
):
    words = ["--model", "smollm2-135m", "--gpu", f"h100-sxm:{num_gpus}", "--num-nodes", str(num_nodes)]
    words += ["--micro-batch", str(micro_batch), "--grad-accum", str(grad_accum)]
    values = document(*words)
    total = micro_batch * grad_accum * num_gpus * num_nodes
    assert values["recipe"]["global_batch"] == total
    assert document(*words, "--global-batch", str(total)) == values


# -- files and text --------------------------------------------------------------------------------------------------


def test_a_ds_config_is_taken_as_it_is():
    config = {
        "train_batch_size": 2 * 3 * 5,
        "train_micro_batch_size_per_gpu": 3,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": 7e6, "stage3_max_live_parameters": 11_000_000},
    }
    Path("ds.json").write_text(json.dumps(config))
    recipe = document("--model", "smollm2-135m", "--gpu", "rtx-4090:2", "--ds-config", "ds.json")["recipe"]
    assert (recipe["zero_stage"], recipe["micro_batch"], recipe["grad_accum"]) == (3, 3, 5)
    assert (recipe["precision"], recipe["gradient_clipping"]) == ("bf16", 0.5)
    assert recipe["zero"]["reduce_bucket_size"] == 7_000_000
    assert recipe["zero"]["stage3_max_live_parameters"] == 11_000_000


@pytest.mark.sweep
def test_the_memory_of_a_host_of_ones_own_is_held_against_what_it_needs():
    words = ("--model", "smollm2-135m", "--gpu", "rtx-4090:2", "--zero-stage", "2", "--offload-optimizer", "cpu")
    needed = call("estimate", *words, "--json").document["host_bytes_per_node"]
    enough = call("estimate", *words, "--host-ram", repr(needed / GIB), "--json")
    short = call("estimate", *words, "--host-ram", repr((needed - 1) / GIB), "--json")
    assert (enough.code, enough.document["verdict"]) == (DONE, "fits")
    assert (short.code, short.document["verdict"]) == (DOES_NOT_FIT, "does_not_fit")
    printed = call("estimate", *words, "--host-ram", "2").out
    assert f"the host (--host-ram) has {gib_text(2 * GIB)} of the {gib_text(needed)} that it needs" in printed
    assert "--host-ram says it" in call("estimate", *words).out


def test_a_card_of_a_catalog_of_ones_own_is_planned_for():
    card = "{name: My Card, vendor: nvidia, memory_mib: 4096, compute_capability: '8.6'}"
    Path("mine.yaml").write_text("gpus:\n  my-card: " + card + "\n")
    values = document("--model", "smollm2-135m", "--gpu", "my-card:2", "--catalog", "mine.yaml")
    assert values["gpu"]["id"] == "my-card"
    assert values["gpu"]["usable_bytes"] <= 4096 * 2**20


@pytest.mark.sweep
@pytest.mark.parametrize(("model", "gpu", "words"), SETUPS[:5])
def test_the_table_shows_the_numbers_of_the_json(model: str, gpu: str, words: Sequence[str]):
    words = ("--model", model, "--gpu", gpu, *words)
    values, shown = document(*words), estimated(*words)
    assert shown.code == estimated(*words, "--json").code
    for name in ("peak_device_bytes", "host_steady_bytes_per_node", "checkpoint_bytes"):
        assert gib_text(values[name]) in shown.out
    assert values["verdict"].replace("_", " ") in shown.out.splitlines()[1]
    assert all(note in shown.out for note in values["notes"])


@pytest.mark.sweep
def test_two_runs_print_the_same():
    words = ("--model", "qwen2-vl-2b", "--gpu", "rtx-4090:2", "--json")
    assert estimated(*words).out == estimated(*words).out


# -- what decides the answer -----------------------------------------------------------------------------------------


@pytest.mark.sweep
def test_freezing_the_vision_encoder_is_hinted_at_unless_the_user_decides():
    words = ("--model", "qwen2-vl-2b", "--gpu", "rtx-4090", "--method", "lora")
    values = document(*words)
    frozen = document(*words, "--freeze-vision")
    names = ("peak_device_bytes", "step_seconds", "verdict")
    assert values["freeze_vision"] == {name: frozen[name] for name in names}
    assert f"hint: --freeze-vision: {gib_text(frozen['peak_device_bytes'])} " in estimated(*words).out
    assert frozen["freeze_vision"] is None
    assert document(*words, "--train-vision")["freeze_vision"] is None


@pytest.mark.sweep
def test_parts_of_a_model_that_hears_are_called_its_encoder_and_its_decoder():
    words = ("--model", "whisper-small", "--gpu", "rtx-4090", "--method", "full")
    assert "; the encoder is trained too" in estimated(*words).out
    assert "trained in encoder and decoder;" in estimated(*words).out
    assert "trained in decoder (encoder frozen);" in estimated(*words, "--freeze-vision").out


def test_scaling_beside_a_comparison_is_refused_and_not_dropped():
    found = call("estimate", "--model", "smollm2-135m", "--gpu", "rtx-4090:2", "--compare", "zero", "--scaling")
    assert found.code == USAGE
    assert "--scaling does not go with --compare" in found.err


@pytest.mark.sweep
def test_options_of_plain_pytorch_are_refused_by_name_under_deepspeed():
    setup = ("estimate", "--model", "smollm2-135m", "--gpu", "rtx-4090:2", "--method", "lora")
    for stage in ((), ("--zero-stage", "3")):
        said = call(*setup, *stage, "--cached-casts")
        assert said.code == MENDABLE
        assert "--cached-casts has no effect with --zero-stage" in said.err
        assert call(*setup, *stage, "--adapter-dtype", "model").code == 0  # as DeepSpeed has them
    assert "--nvme-path swap has no effect" in call(*setup, "--nvme-path", "swap").out


def test_one_of_a_thing_is_not_many():
    words = ("--model", "smollm2-135m", "--gpu", "rtx-4090", "--num-samples", "16", "--global-batch", "16")
    shown = call("estimate", *words, "--save-every", "1", "--keep-last", "1").out
    assert "; 1 step in " in shown
    many = call("estimate", *words, "--epochs", "9", "--save-every", "1", "--keep-last", "1").out
    assert "while 1 checkpoint is there and one is being written" in " ".join(many.split())
    assert "; 9 steps in " in many


@pytest.mark.parametrize(("option", "value", "instead"), [("--offload-params", "cpu", "none"), ("--hpz", "2", "1")])
def test_packed_weights_are_refused_by_the_option_that_asks_for_stage_3(option: str, value: str, instead: str):
    """Whom ``give stage 2`` tells nothing: it would be refused with the same option."""
    words = ("estimate", "--model", "smollm2-135m", "--gpu", "t4:2", "--method", "qlora")
    says(refusal(*words, option, value), f"does not go with {option} {value}, which", f"; give {option} {instead}, or")
    assert call(*words, option, instead).code == DONE


def test_how_much_lower_a_loss_has_to_be_is_said_beside_a_patience_for_a_trainer_that_takes_it():
    words = ("estimate", "--model", "smollm2-135m", "--gpu", "l4:1", "--eval-batch", "2", "--eval-every", "10")
    words = (*words, "--early-stopping-threshold", "0.1")
    says(refusal(*words), "--early-stopping-threshold is given without --early-stopping-patience")
    words = (*words, "--early-stopping-patience", "2")
    says(refusal(*words, "--for", "axolotl"), "--early-stopping-threshold is not to be had")
    assert "2 without a lower loss by more than 0.1 end the run" in call(*words).out

"""Changes of a trainer's own file: what is promised is what the file means when it is read again."""

import json
import re
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_calls import FEW_LAYERS
from other_trainers.shipped import KEPT, Shipped, shipped, write_all
from vlmplan.errors import InputError
from vlmplan.memory.device import Verdict
from vlmplan.models import find_model
from vlmplan.other_trainers import open_trainer_config
from vlmplan.other_trainers.axolotl.keys import LIGER_LAYERS
from vlmplan.other_trainers.editing.patch import KeyChange
from vlmplan.proposals.fixes import Fix, Fixes, found_fixes
from vlmplan.request import configured_request, own_request
from vlmplan.requested import requested_estimate
from vlmplan.units import DType

READ = {name for name, outcome in json.loads(KEPT.read_text(encoding="utf-8")).items() if outcome == "read"}
OF_ONE_MODEL = re.compile(r"Wqkv|model\.language_model\.layers")
"""Modules that the models in place of those that are named do not have."""
OF_ONE_KIND = re.compile(r"- in_proj|transformer_layer_cls_to_wrap: (?!Qwen2)")
"""Layers that the models in place of those that are named do not have."""
_READ_RUNS = [
    file for file in shipped() if f"{file.trainer}/{file.path}" in READ and not OF_ONE_MODEL.search(file.text)
]
RUNS = [file for place, file in enumerate(_READ_RUNS) if file.trainer != "axolotl" or place % 4 == 0]
CARD = "rtx-3060-12gb"
DAY = date(2026, 11, 21)
SEES = re.compile(r"vl|vision|omni|ocr|ovis|keye|minicpm|gemma-?[34]|llama-?4", re.IGNORECASE)
NOT_ON_THESE_CARDS = re.compile(
    r"does not divide (the \d+ answers|\d+ GPU)|no GPU of this kind has as much|\d or more is needed|--fsdp is not"
)
"""Why a file of GRPO is refused before anything of it can be changed: its groups or vLLM are made for other cards."""
CARDS = (f"{CARD}:1", "rtx-4060:2", "a100-sxm4-80gb:4")
ON_A_CARD = [(file, CARDS[place % len(CARDS)]) for place, file in enumerate(RUNS) if not OF_ONE_KIND.search(file.text)]
LLAMA_FACTORY: dict[str, Any] = {
    "model_name_or_path": "./small",
    "stage": "sft",
    "finetuning_type": "lora",
    "cutoff_len": 2048,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "bf16": True,
}
TRL: dict[str, Any] = {
    "model_name_or_path": "./small",
    "dataset_name": "d",
    "use_peft": True,
    "lora_target_modules": "all-linear",
    "max_length": 16384,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
}
SHARED = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": "auto", "overlap_comm": True},
}
ALLOCATOR = {"PYTORCH_CUDA_ALLOC_CONF"}
LIGER = {"use_liger_kernel", "plugins", "liger_fused_linear_cross_entropy", "liger_layer_norm", *LIGER_LAYERS}
MS_SWIFT: dict[str, Any] = {
    "model": "./small",
    "tuner_type": "lora",
    "torch_dtype": "bfloat16",
    "max_length": 2048,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
}
AXOLOTL: dict[str, Any] = {
    "base_model": "./small",
    "adapter": "lora",
    "lora_r": 8,
    "lora_alpha": 16,
    "lora_target_linear": True,
    "sequence_len": 2048,
    "micro_batch_size": 8,
    "gradient_accumulation_steps": 2,
}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("small").mkdir()
    Path("shared.json").write_text(json.dumps(SHARED, indent=4), encoding="utf-8")
    Path("small/config.json").write_text(json.dumps(FEW_LAYERS), encoding="utf-8")


def fixes(path: Path, gpu: str, target: Path | None = None, **options: Any) -> Fixes:
    own, opened = own_request({"gpu": gpu, **options}), open_trainer_config(path)
    request = configured_request(own, opened, find_model)
    present, _ = requested_estimate(request, ())
    return found_fixes(own, opened, request, present, (), DAY, target or path)


def fixed(values: dict[str, Any], gpu: str, **options: Any) -> Fixes:
    path = Path("train.yaml")
    path.write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in values.items()), encoding="utf-8")
    return fixes(path, gpu, **options)


def changed(found: Fixes, place: int = 0) -> dict[str, tuple[Any, Any]]:
    return {change.key: (change.before, change.after) for change in found.fixes[place].patch.changes}


def keys_of(found: Fixes) -> set[str]:
    return {change.key for fix in found.fixes for change in fix.patch.changes if change.file == Path("train.yaml")}


def assert_kept(found: Fixes, **options: Any) -> None:
    """Write each change, read the file again, and compare with what was promised."""
    for fix in found.fixes:
        for text in fix.patch.files:
            text.path.write_text(text.after, encoding="utf-8", newline="")
        again, _ = requested_estimate(
            configured_request(own_request(options), open_trainer_config(fix.patch.files[0].path), find_model), ()
        )
        assert again.verdict is Verdict.FITS
        assert again.device.device_bytes == fix.estimate.device.device_bytes
        assert again.peak_allocated_bytes == fix.estimate.peak_allocated_bytes
        assert again.host.peak_bytes == fix.estimate.host.peak_bytes
        assert again.step_seconds == fix.estimate.step_seconds
        assert again.samples_per_step == found.present.samples_per_step
        for text in fix.patch.files:
            text.path.unlink()


# -- what is found -----------------------------------------------------------------------------------------------------


@pytest.mark.sweep
def test_a_smaller_micro_batch_keeps_the_samples_of_a_step():
    found = fixed(LLAMA_FACTORY, f"{CARD}:1")
    assert not found.fits_already
    before, after = changed(found)["per_device_train_batch_size"], changed(found)["gradient_accumulation_steps"]
    assert before[1] < before[0] == 8
    assert before[1] * after[1] == 8 * 2
    assert found.fixes[0].keeps_results
    assert_kept(found, gpu=f"{CARD}:1")


@pytest.mark.sweep
def test_no_alternative_is_as_good_as_an_earlier_one_in_all():
    found = fixed(LLAMA_FACTORY | {"deepspeed": "shared.json", "finetuning_type": "full"}, f"{CARD}:2")
    assert 1 < len(found.fixes) <= 3

    def measures(fix: Fix) -> list[float]:
        one = fix.estimate
        return [one.step_seconds or 0.0, one.device.device_bytes, one.host.peak_bytes, not fix.keeps_results]

    for place, other in enumerate(found.fixes):
        for earlier in found.fixes[:place]:
            assert any(mine < its for mine, its in zip(measures(other), measures(earlier), strict=True))
    assert_kept(found, gpu=f"{CARD}:2")


def test_what_fits_is_made_faster_where_each_change_saves_a_tenth():
    slow = LLAMA_FACTORY | {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 16, "cutoff_len": 64}
    found = fixed(slow, f"{CARD}:1")
    assert found.fits_already
    assert found.fixes
    assert all(fix.keeps_results for fix in found.fixes)
    seconds = [found.present.step_seconds, *(fix.estimate.step_seconds for fix in reversed(found.fixes))]
    assert all(after <= 0.9 * before for before, after in pairwise(seconds))
    assert_kept(found, gpu=f"{CARD}:1")


def test_what_is_said_beside_the_file_is_held():
    path = Path("train.yaml")
    path.write_text(json.dumps(LLAMA_FACTORY), encoding="utf-8")
    found = fixes(path, f"{CARD}:1", micro_batch=8, seq_len=2048)
    assert not {"per_device_train_batch_size", "cutoff_len"} & keys_of(found)
    assert_kept(found, gpu=f"{CARD}:1", micro_batch=8, seq_len=2048)


@pytest.mark.sweep
def test_where_nothing_helps_the_cheapest_other_machine_is_named():
    long = LLAMA_FACTORY | {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1}
    found = fixed(long | {"model_name_or_path": "qwen2.5-72b"}, f"{CARD}:1")
    assert found.fixes == ()
    assert found.other_machine is not None
    assert found.other_machine.plan.estimate.verdict is Verdict.FITS


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "values", [LLAMA_FACTORY, MS_SWIFT, TRL, AXOLOTL], ids=["LLaMA-Factory", "ms-swift", "TRL", "axolotl"]
)
def test_only_what_the_trainer_has_a_key_for_changes(values):
    found = fixed(values, f"{CARD}:1")
    assert keys_of(found)
    assert (
        keys_of(found)
        <= set(values)
        | {"optim", "optimizer", "attn_impl", "attn_implementation", "dtype", "deepspeed", "gradient_checkpointing"}
        | LIGER
        | ALLOCATOR
    )
    assert_kept(found, gpu=f"{CARD}:1")


def test_samples_are_not_made_shorter_where_ligers_loss_makes_room_and_other_plugins_stay():
    long = AXOLOTL | {"sequence_len": 65536, "micro_batch_size": 1, "gradient_checkpointing": True}
    found = fixed(long | {"plugins": ["axolotl.integrations.swanlab.SwanLabPlugin"]}, f"{CARD}:1")
    first = found.fixes[0]
    assert first.keeps_results
    after = yaml.safe_load(first.patch.files[0].after)
    assert after["plugins"] == [
        "axolotl.integrations.swanlab.SwanLabPlugin",
        "axolotl.integrations.liger.LigerPlugin",
    ]
    assert (after["liger_fused_linear_cross_entropy"], after["sequence_len"]) == (True, 65536)
    assert_kept(found, gpu=f"{CARD}:1")


@pytest.mark.sweep
def test_the_words_of_a_script_change():
    Path("run.sh").write_text("swift sft " + " ".join(f"--{key} {value}" for key, value in MS_SWIFT.items()))
    found = fixes(Path("run.sh"), f"{CARD}:1")
    assert "--per_device_train_batch_size 8" not in found.fixes[0].patch.files[0].after
    assert_kept(found, gpu=f"{CARD}:1")


# -- DeepSpeed ---------------------------------------------------------------------------------------------------------


SLOW = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}


def test_a_deepspeed_file_is_changed_in_a_copy_beside_the_written_file():
    slow = LLAMA_FACTORY | SLOW | {"cutoff_len": 256, "deepspeed": "shared.json"}
    found = fixed(slow, "a100-sxm4-80gb:4")
    engines = [fix for fix in found.fixes if len(fix.patch.files) == 2]
    assert engines
    main, beside = engines[0].patch.files
    assert (str(beside.path), str(beside.origin)) == ("train.deepspeed.json", "shared.json")
    kept = json.loads(beside.after)["zero_optimization"]
    assert kept["overlap_comm"] is True
    assert kept["stage"] < 3
    assert "stage3_param_persistence_threshold" not in kept
    assert 'deepspeed: "train.deepspeed.json"' in main.after
    assert '-        "stage": 3' in beside.diff
    assert json.loads(Path("shared.json").read_text(encoding="utf-8")) == SHARED
    assert_kept(found, gpu="a100-sxm4-80gb:4")


def test_ms_swift_has_names_for_the_files_that_it_ships():
    found = fixed(MS_SWIFT | SLOW | {"max_length": 256, "deepspeed": "zero3"}, "a100-sxm4-80gb:4")
    names = {changed(found, place).get("deepspeed") for place in range(len(found.fixes))}
    assert names & {("zero3", "zero1"), ("zero3", "zero2"), ("zero3", None)}
    assert_kept(found, gpu="a100-sxm4-80gb:4")


def test_weights_that_are_updated_in_float32_still_are():
    full = MS_SWIFT | SLOW | {"tuner_type": "full", "max_length": 256}
    found = fixed(full | {"deepspeed": "zero3"}, "a100-sxm4-80gb:4")
    assert found.fits_already
    assert found.fixes  # DDP of ms-swift would be faster, and update 16-bit weights
    assert all(fix.estimate.recipe.master_dtype is DType.FLOAT32 for fix in found.fixes)
    assert found.present.recipe.master_dtype is DType.FLOAT32


def test_accelerates_file_has_the_engine_alone():
    text = (
        "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 2\n"
        "deepspeed_config:\n  zero_stage: 3 # sharded\n  offload_optimizer_device: cpu\n  offload_param_device: none\n"
    )
    Path("train.yaml").write_text(text, encoding="utf-8")
    options = {"gpu": "a100-sxm4-80gb:2", "model": "./small", "micro_batch": 1, "seq_len": 512}
    found = fixes(
        Path("train.yaml"), options["gpu"], **{key: options[key] for key in ("model", "micro_batch", "seq_len")}
    )
    assert keys_of(found) <= {"deepspeed_config.zero_stage", "deepspeed_config.offload_optimizer_device"}
    assert "offload_optimizer_device: none" in found.fixes[0].patch.files[0].after
    assert_kept(found, **options)


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_what_ms_swift_writes_of_a_run_is_not_changed():
    Path("args.json").write_text(json.dumps(MS_SWIFT | {"swift_version": "4.6.0"}), encoding="utf-8")
    with pytest.raises(InputError, match=r"args\.json is what ms-swift writes of a run.*change the script or the YAML"):
        fixes(Path("args.json"), "rtx-4090:2")


# -- every shipped configuration ---------------------------------------------------------------------------------------


def model_for(path: Path) -> str:
    """A packaged model of the kind that the configuration trains."""
    if "qwen3_lora_fsdp" in path.parts:  # a file beside it names the units of FSDP
        return "qwen3-1.7b"
    values = open_trainer_config(path).values
    named = next(
        (values[key] for key in ("model_name_or_path", "model", "model_id_or_path", "base_model") if key in values), ""
    )
    if "SmolVLM2" in str(named):  # adapters stand at the names of its layers
        return "smolvlm2-2.2b"
    return "qwen2.5-vl-3b" if SEES.search(str(named)) else "qwen2.5-1.5b"


def case(file: Shipped, gpu: str) -> str:
    return f"{file.path}-{gpu}"


@pytest.mark.one_in(89)
@pytest.mark.parametrize(("file", "gpu"), ON_A_CARD, ids=lambda one: one if isinstance(one, str) else one.path)
def test_a_shipped_configuration_means_what_its_change_promised(file, gpu, tmp_path, monkeypatch):
    root = tmp_path / file.trainer
    write_all([one for one in shipped() if one.trainer == file.trainer], tmp_path)
    monkeypatch.chdir(root)
    path = Path(file.path)
    options = {"gpu": gpu, "model": model_for(path)}
    try:
        found = fixes(path, gpu, path.with_name(f"fixed{path.suffix}"), model=options["model"])
    except InputError as refusal:
        if "grpo" in file.text and NOT_ON_THESE_CARDS.search(str(refusal)):
            return
        raise
    assert found.fixes or found.fits_already or found.other_machine is not None
    assert_kept(found, **options)
    keys: list[KeyChange] = [change for fix in found.fixes for change in fix.patch.changes]
    assert not [change.key for change in keys if change.key in ("loss", "loss_type")]

"""What programs do to their objects after they have made them: settings, packed weights, parameters that are frozen."""

from pathlib import Path

import pytest

from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config

TEXT = """
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Mxfp4Config
from trl import SFTConfig, SFTTrainer
more, trained = {{}}, {{}}
args = SFTConfig(output_dir="out", max_length=256, per_device_train_batch_size=2)
{settings}
model = AutoModelForCausalLM.from_pretrained("qwen2.5-0.5b", **more)
{changes}
SFTTrainer(model, args=args, train_dataset=data, **trained).train()
"""
SEES = """
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForImageTextToText, Trainer, TrainingArguments
judge = AutoModelForImageTextToText.from_pretrained("smolvlm-256m")
judge.requires_grad_(False)
def needs_gradients(module, inputs, output):
    output.requires_grad_(True)
model = AutoModelForImageTextToText.from_pretrained("qwen2.5-vl-3b", dtype=torch.bfloat16)
model.get_input_embeddings().register_forward_hook(needs_gradients)
def freeze(part):
    for parameter in part.parameters():
        parameter.requires_grad = False
{changes}
Trainer(model=model, args=TrainingArguments(output_dir="out", bf16=True), train_dataset=data).train()
"""
PARTS = ("train_vision", "train_projector", "train_language")


def read(folder: Path, text: str) -> TrainerConfig:
    (folder / "train.py").write_text(text, encoding="utf-8")
    return read_trainer_config(folder / "train.py", Asked(num_gpus=1, find_model=find_model))


def of_text(folder: Path, settings: str = "", changes: str = "") -> TrainerConfig:
    return read(folder, TEXT.format(settings=settings, changes=changes))


@pytest.mark.parametrize(
    "settings",
    [
        "args.max_length = 1024",
        'setattr(args, "max_length", 1024)',
        "args.max_length = 512\nargs.max_length = 1024",
        "def lengthen(own):\n    own.max_length = 1024\nlengthen(args)",
        "if 1 < 2:\n    args.max_length = 1024",
        "other = SFTConfig(output_dir='out')\nother.max_length = 64\nargs.max_length = 1024",
    ],
)
def test_arguments_have_what_they_are_given_after_they_were_made(settings, tmp_path):
    options = of_text(tmp_path, settings).options
    assert (options["seq_len"], options["micro_batch"]) == (1024, 2)


@pytest.mark.parametrize("settings", ["if long():\n    args.max_length = 1024", "args.max_length += 1024"])
def test_what_only_running_the_program_gives_them_is_refused(settings, tmp_path):
    with pytest.raises(InputError, match=r"max_length is .*, which only running the program tells"):
        of_text(tmp_path, settings)


def test_an_option_is_worth_its_default_where_other_objects_have_an_attribute_of_that_name(tmp_path):
    options = 'import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument("--max_length", type=int)\n'
    settings = f"{options}own = parser.parse_args()\nif own.max_length:\n    args.max_length = own.max_length"
    assert of_text(tmp_path, settings).options["seq_len"] == 256
    again = f"{settings}\nown.max_length = 512"
    with pytest.raises(InputError, match="max_length is"):
        of_text(tmp_path, again)


@pytest.mark.parametrize(
    "settings",
    [
        "bits = BitsAndBytesConfig(load_in_4bit=True)\nmore = dict(quantization_config=bits)",
        "more = {'quantization_config': BitsAndBytesConfig(load_in_4bit=True)}",
        "more = {}\nmore['quantization_config'] = BitsAndBytesConfig(load_in_4bit=True)",
    ],
)
def test_packed_weights_and_adapters_are_those_of_what_is_unpacked_into_a_call(settings, tmp_path):
    changes = "trained = {'peft_config': LoraConfig(r=4, target_modules='all-linear')}"
    options = of_text(tmp_path, settings, changes).options
    assert (options["method"], options["lora_rank"]) == ("qlora", 4)


def test_a_checkpoint_that_is_unpacked_while_it_is_loaded_is_not_packed(tmp_path):
    settings = "more = dict(quantization_config=Mxfp4Config(dequantize={}), dtype='auto')"
    assert of_text(tmp_path, settings.format(True)).options["method"] == "full"
    with pytest.raises(InputError, match="quantization_config is Mxfp4Config"):
        of_text(tmp_path, settings.format(False))


@pytest.mark.parametrize(
    ("changes", "trained"),
    [
        ("", (None, None, None)),
        ("model.model.visual.requires_grad_(False)", (False, False, True)),
        ("freeze(model.model.language_model)", (True, True, False)),
        (
            "for one in model.parameters():\n    one.requires_grad = False\nmodel.merger.requires_grad_(True)",
            (False, True, False),
        ),
        (
            "for name, one in model.named_parameters():\n    if 'visual' in name:\n        one.requires_grad = False",
            (False, False, True),
        ),
        (
            "tower = model.visual\nfor one in tower.parameters():\n    one.requires_grad_(False)\n"
            "for name, one in model.named_parameters():\n    if 'merger' in name or 'connector' in name:\n"
            "        one.requires_grad = True",
            (False, True, True),
        ),
    ],
)
def test_parts_are_trained_as_the_program_leaves_them(changes, trained, tmp_path):
    options = read(tmp_path, SEES.format(changes=changes)).options
    assert tuple(options.get(part) for part in PARTS) == trained


UNKNOWN = "for one in model.model.layers[:4].parameters():\n    one.requires_grad = False"


@pytest.mark.parametrize(
    "changes",
    [
        UNKNOWN,
        "if rarely():\n    model.visual.requires_grad_(False)",
        "for name, one in model.named_parameters():\n    if chosen(name):\n        one.requires_grad = False",
        "freeze(model.visual)\nfreeze(model.language_model)",
        "model.visual.requires_grad_(rarely())",
    ],
)
def test_what_only_running_the_program_freezes_is_refused_until_its_user_says_it(changes, tmp_path):
    text = SEES.format(changes=changes)
    with pytest.raises(InputError, match="leaves trained what only running the program tells; say it with --freeze-v"):
        read(tmp_path, text)
    said = read(tmp_path, f"# vlmplan: ignore requires_grad\n{text}")
    assert "train_vision" not in said.options


def test_a_model_of_which_all_is_frozen_is_refused(tmp_path):
    with pytest.raises(InputError, match="requires_grad is set to False for all of the model, which leaves nothing"):
        of_text(tmp_path, changes="model.requires_grad_(False)")


def test_adapters_are_trained_whatever_was_frozen_before_them(tmp_path):
    adapted = "model = get_peft_model(model, LoraConfig(r=4, target_modules='all-linear'))"
    own = "for name, one in model.named_parameters():\n    if 'lora' not in name:\n        one.requires_grad = False"
    plain = of_text(tmp_path, changes=adapted).options
    assert of_text(tmp_path, changes=f"{UNKNOWN}\n{adapted}\n{own}").options == plain
    with pytest.raises(InputError, match="leaves trained what only running"):
        of_text(tmp_path, changes=f"{adapted}\n{UNKNOWN}")


EVALUATED = "args.eval_strategy = 'steps'\nargs.eval_steps = 50\nargs.logging_first_step = 5"


@pytest.mark.parametrize(
    ("functions", "kept"),
    [
        ("{}", "loss"),
        ("dict(compute_metrics=score)", "logits"),
        ("dict(compute_metrics=score, preprocess_logits_for_metrics=lambda logits, labels: logits)", "predictions"),
        ("dict(compute_metrics=None, preprocess_logits_for_metrics=None)", "loss"),
    ],
)
def test_an_evaluation_keeps_what_the_functions_that_the_trainer_is_given_ask_for(functions, kept, tmp_path):
    assert of_text(tmp_path, EVALUATED, f"trained = {functions}").options["eval_keeps"] == kept
    never = of_text(tmp_path, changes=f"trained = {functions}").options
    assert "eval_keeps" not in never


KEEPS = "\nargs.load_best_model_at_end = True"
BY_LOSS = "\nargs.metric_for_best_model = 'eval_loss'"
MAY_END = "EarlyStoppingCallback: time and cost are those of all steps, which is the most; it may end sooner"


@pytest.mark.parametrize(
    ("settings", "stops", "patience", "note"),
    [
        (KEEPS, "early_stopping_patience=3", 3, None),
        (KEEPS, "3, 0.01", 3, None),
        (KEEPS + BY_LOSS, "", 1, None),
        (KEEPS, "early_stopping_patience=own.patience", None, MAY_END),
        (BY_LOSS, "2", None, MAY_END),
    ],
)
def test_a_callback_ends_the_run_where_the_best_evaluation_is_the_result(settings, stops, patience, note, tmp_path):
    given = f"trained = dict(callbacks=[EarlyStoppingCallback({stops})])"
    found = of_text(tmp_path, EVALUATED + settings, given)
    assert found.options.get("early_stopping_patience") == patience
    assert found.options.get("early_stopping_threshold") == (0.01 if "0.01" in stops else None)
    assert note is None or note in found.notes
    assert (MAY_END in found.notes) is (note == MAY_END)


def test_a_callback_that_goes_by_something_else_than_the_loss_ends_nothing_here(tmp_path):
    by_accuracy = EVALUATED + KEEPS + "\nargs.metric_for_best_model = 'accuracy'"
    found = of_text(tmp_path, by_accuracy, "trained = dict(callbacks=[EarlyStoppingCallback(3, 0.01)])")
    assert not {"early_stopping_patience", "early_stopping_threshold"} & found.options.keys()


def test_a_callback_that_does_not_know_what_is_best_is_refused(tmp_path):
    with pytest.raises(InputError, match="EarlyStoppingCallback needs load_best_model_at_end or metric_for_best_model"):
        of_text(tmp_path, EVALUATED, "trained = dict(callbacks=[EarlyStoppingCallback(2)])")


def test_images_are_as_large_as_the_processor_that_the_program_loads_leaves_them(tmp_path):
    loads = "processor = AutoProcessor.from_pretrained('qwen2.5-vl-3b', max_pixels=512 * 28 * {})"
    found = read(tmp_path, SEES.format(changes=loads.format(28)))
    assert found.options["image_size"] == "633x633"
    assert "every image is taken as large as processor.max_pixels allows, 633x633" in found.notes
    assert "image_size" not in read(tmp_path, SEES.format(changes=loads.format("own"))).options
    assert "image_size" not in of_text(tmp_path, changes=loads.format(28)).options


LOADS = "processor = AutoProcessor.from_pretrained('qwen2.5-vl-3b', max_pixels=64 * 784)\n"
BY_ITSELF = "from transformers import AutoImageProcessor as Sizes\nown = Sizes.from_pretrained('x')\n"


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        (LOADS + "processor.image_processor.max_pixels = 512 * 28 * 28", "633x633"),
        (LOADS + "own = processor.image_processor\nown.max_pixels = 512 * 28 * 28", "633x633"),
        (LOADS + "setattr(processor.image_processor, 'max_pixels', 401408)", "633x633"),
        (LOADS + "processor.image_processor.size = {'shortest_edge': 3136, 'longest_edge': 401408}", "633x633"),
        (LOADS + "processor.image_processor.do_convert_rgb = True", "224x224"),
        (BY_ITSELF + "own.max_pixels = 401408", "633x633"),
        ("processor.image_processor.min_pixels = 1024 * 1024", "1024x1024"),
        ("processor.image_processor.min_pixels = 3136", None),
        (LOADS + "if big():\n    processor.image_processor.max_pixels = 401408", None),
        (LOADS + "processor.image_processor.max_pixels *= 4", None),
    ],
)
def test_images_are_as_large_as_what_an_image_processor_is_given_later_says(changes, size, tmp_path):
    found = read(tmp_path, SEES.format(changes=changes))
    assert found.options.get("image_size") == size
    is_open = size is None and "max_pixels" not in changes
    assert any("no limit on the pixels" in note for note in found.notes) is is_open


@pytest.mark.parametrize(
    ("changes", "bounds"),
    [
        (LOADS, (0, 64 * 784)),
        (LOADS + "processor.image_processor.min_pixels = 3136", (3136, 64 * 784)),
        ("processor.image_processor.size = {'shortest_edge': 3136, 'longest_edge': 401408}", (3136, 401408)),
        ("processor.image_processor.max_pixels = own.pixels", (0, None)),
    ],
)
@pytest.mark.parametrize("trainer", ["Trainer", "SFTTrainer", "DPOTrainer", "GRPOTrainer"])
def test_images_of_a_dataset_are_brought_within_the_bounds_of_the_programs_processor(
    trainer, changes, bounds, tmp_path
):
    text = SEES.format(changes=changes)
    if trainer != "Trainer":
        own = f"{trainer.removesuffix('Trainer')}Config"
        text = text.replace("Trainer(", f"{trainer}(").replace("TrainingArguments(", f"{own}(")
        text = text.replace("judge = ", f"from trl import {own}, {trainer}\n").replace(
            "judge.requires_grad_(False)", ""
        )
    rules = read(tmp_path, text).data_rules
    assert (rules.min_pixels, rules.max_pixels) == bounds
    smolvlm = read(tmp_path, text.replace("qwen2.5-vl-3b", "smolvlm-256m").replace("size =", "max_pixels = 1 #"))
    assert smolvlm.data_rules.max_pixels is None


def test_a_limit_of_pixels_that_only_running_the_program_tells_is_told(tmp_path):
    later = "processor.image_processor.max_pixels = own.pixels"
    notes = read(tmp_path, SEES.format(changes=later)).notes
    told = "processor.max_pixels is own.pixels, which only running the program tells: give --image-size for the largest"
    assert any(note.startswith(told) for note in notes)


@pytest.mark.parametrize("change", ["size = {'height': 448, 'width': 448}", "do_resize = False", "merge_size = own[0]"])
def test_what_changes_images_otherwise_is_refused_unless_it_is_as_in_the_checkpoint(change, tmp_path):
    text = SEES.format(changes=f"processor.image_processor.{change}")
    name = f"processor.{change.split()[0]}"
    with pytest.raises(InputError, match=f"{name} is .*, and is not read of a program"):
        read(tmp_path, text)
    assert any(note.startswith(name) for note in read(tmp_path, f"{text}# vlmplan: ignore {name}\n").notes)
    assert read(tmp_path, SEES.format(changes="processor.image_processor.merge_size = 2")).idle


def test_fewer_pixels_than_one_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"processor.min_pixels is -1; a whole number of 1 or more is needed"):
        read(tmp_path, SEES.format(changes="processor.image_processor.min_pixels = -1"))


def test_a_limit_of_pixels_that_a_processor_does_not_have_bounds_nothing(tmp_path):
    changes = "processor.image_processor.max_pixels = 401408"
    found = read(tmp_path, SEES.replace("qwen2.5-vl-3b", "smolvlm-256m").format(changes=changes))
    assert "image_size" not in found.options
    assert "processor.max_pixels" in found.idle

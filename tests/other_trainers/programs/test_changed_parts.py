"""What a program changes of its model and its trainer beyond their settings: read, or refused by its text."""

from pathlib import Path

import pytest

from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config

TEXT = """import os, torch
from liger_kernel.transformers import AutoLigerKernelForCausalLM
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
{before}
model = {auto}.from_pretrained("qwen2.5-0.5b", dtype=torch.bfloat16)
{changes}
trainer = Trainer(model=model, args=TrainingArguments(output_dir="out", bf16=True{given}), train_dataset=rows{more})
{late}
trainer.train()
{after}
"""
EMPTY = dict.fromkeys(("before", "changes", "given", "more", "late", "after"), "") | {"auto": "AutoModelForCausalLM"}
ADAPTERS = 'model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj"]))\n'
LOOP = "for name, one in model.named_parameters():\n    "
LIGER = {"given": ", use_liger_kernel=True"}


@pytest.fixture
def read(tmp_path: Path):
    def of(**texts: str) -> TrainerConfig:
        (tmp_path / "train.py").write_text(TEXT.format(**(EMPTY | texts)), encoding="utf-8")
        return read_trainer_config(tmp_path / "train.py", Asked(num_gpus=1, find_model=find_model))

    return of


@pytest.mark.parametrize(
    "texts",
    [
        {"before": "apply_liger_kernel_to_qwen2()"},
        {"before": "apply_liger_kernel_to_qwen2(rope=True, fused_linear_cross_entropy=True)"},
        {"changes": "_apply_liger_kernel_to_instance(model=model)"},
        {"auto": "AutoLigerKernelForCausalLM"},
    ],
)
def test_ligers_own_functions_are_as_its_argument(texts, read):
    assert read(**texts).options == read(**LIGER).options != read().options


def test_ligers_loss_can_be_left_out(read):
    with_table = ', use_liger_kernel=True, liger_kernel_config={"fused_linear_cross_entropy": False}'
    options = read(before="apply_liger_kernel_to_qwen2(fused_linear_cross_entropy=False)").options
    assert options == read(given=with_table).options != read(**LIGER).options


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ({"changes": "apply_liger_kernel_to_qwen2()"}, "patches classes of which the model is made already"),
        ({"before": "apply_liger_kernel_to_qwen2(rope=kernels)"}, "patches only running the program tells"),
        ({"before": "if small:\n    apply_liger_kernel_to_qwen2()"}, "patches only running the program tells"),
    ],
)
def test_ligers_functions_are_refused_where_the_text_does_not_tell(texts, sentence, read):
    with pytest.raises(InputError, match=sentence):
        read(**texts)


@pytest.mark.parametrize(
    "changes", ['model.set_attn_implementation("eager")', 'model.config._attn_implementation = "eager"']
)
def test_attention_that_a_model_is_told_later_counts(changes, read):
    assert read(changes=changes).options == read().options | {"attention": "eager"}
    with pytest.raises(InputError, match="attn_implementation"):
        read(changes=changes.replace('"eager"', "kernel"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ("model.lm_head = CastOutputToFloat(model.lm_head)", "in the place of a part of the model"),
        ("model.model.layers = model.model.layers[:12]", "in the place of a part of the model"),
        ("model.forward = wrapped", "in the place of a part of the model"),
        ("del model.model.layers[12:]", "takes a part of the model away"),
        ("model.lm_head.float()", "casts a part of the model alone"),
        ("model.model.embed_tokens.to(torch.float32)", "casts a part of the model alone"),
        ("model.compile()", "compiles the model"),
        (LOOP + "one.data = one.data.to(torch.float32)", "casts parameters one by one"),
        (LOOP + "if one.requires_grad:\n        one.data = one.data.float()", "casts parameters one by one"),
        (ADAPTERS + LOOP + "if one.requires_grad:\n        one.data = one.data.half()", "casts parameters one by one"),
    ],
)
def test_what_changes_a_part_of_the_model_is_refused(changes, sentence, read):
    with pytest.raises(InputError, match=f"{sentence}: not planned; leave it out"):
        read(changes=changes)


@pytest.mark.parametrize(
    "texts",
    [
        {"changes": "head = model.lm_head.weight.float()"},
        {"changes": "model.config.use_cache = False\nmodel.generation_config.do_sample = True"},
        {"changes": "model.is_parallelizable = True\nmodel.model_parallel = True"},
        {"changes": "other = model.lm_head.to('cuda')"},
        {"after": "model.lm_head.float()\ndel model.model.layers[2:]"},
        {"after": "trainer.model = trainer.model.merge_and_unload()"},
        {"late": "trainer.callback = None\ntrainer.model.config.use_cache = False"},
        {"more": ", compute_loss_func=None"},
    ],
)
def test_what_changes_nothing_of_the_run_is_passed_by(texts, read):
    assert read(**texts).options == read().options


def test_adapters_are_float32_already(read):
    changes = ADAPTERS + LOOP + "if one.requires_grad:\n        one.data = one.data.to(torch.float32)"
    assert read(changes=changes).options == read(changes=ADAPTERS).options


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ({"late": "trainer.optimizer = own"}, "gives the trainer something else than its own"),
        ({"late": "trainer.compute_loss = own"}, "gives the trainer something else than its own"),
        ({"more": ", compute_loss_func=own"}, "compute_loss_func is own, a loss of the program's own"),
    ],
)
def test_what_replaces_the_trainers_steps_is_refused(texts, sentence, read):
    with pytest.raises(InputError, match=sentence):
        read(**texts)


@pytest.mark.parametrize(
    "before",
    [
        'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"',
        'os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:128")',
        'NAME = "PYTORCH_ALLOC_CONF"\nos.environ[NAME] = "expandable_segments:True"',
    ],
)
def test_the_allocators_variable_is_read(before, read):
    assert read(before=before).options == read().options | {"expandable_segments": True}
    assert read(before=before.replace("True", "False")).options == read().options


def test_a_variable_that_is_set_outright_goes_before_a_default(read):
    setting = 'os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:False"\n'
    default = 'os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")\n'
    assert read(before=setting + default).options == read().options

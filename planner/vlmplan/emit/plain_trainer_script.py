"""train.py: what ``TrainingArguments`` do not say, as a program around Hugging Face's Trainer (transformers 5.23)."""

from collections.abc import Sequence

from vlmplan.emit.trl_script import stopping_callback
from vlmplan.model_types.thinkers import thinker_class
from vlmplan.other_trainers.meaning import sees
from vlmplan.other_trainers.writing import model_name, placeholder, trained_embeddings
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import ALL_LINEAR, BITS, DEFAULT_INIT, REGEX, AttentionImplementation, WeightDtype
from vlmplan.recipe.evaluation import Moment
from vlmplan.recipe.lora_targets import layer_targets, listed_targets, stacked_targets
from vlmplan.workload import ModelFiles, Workload

CAUSAL_TYPES_WITH_IMAGES = frozenset({"phi4_multimodal"})
"""Whose class for text alone takes images too: transformers has none for both (``modeling_auto.py``)."""
PROGRAM = '''
import json
import sys

import torch
from transformers import AutoProcessor, {stops}HfArgumentParser, Trainer, TrainingArguments
from transformers import {model_class} as ModelClass

MODEL = {model!r}
DATA = {data!r}  # fill in: a file of chats, each line an object with "messages"
{eval_data}MAX_LENGTH = {max_length}
DTYPE = torch.{dtype}
ATTENTION = {attention!r}
BITS = {bits}  # of packed weights
PACKED = {packed!r}  # of a checkpoint that is trained in 16 bits: the class that asks for them
LORA = {lora}


def loaded_model(is_checkpointing):
    quantization = None
    if BITS == 8:
        from transformers import BitsAndBytesConfig

        quantization = BitsAndBytesConfig(load_in_8bit=True)
    elif BITS == 4:
        from transformers import BitsAndBytesConfig

        quantization = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=DTYPE,{storage}
        )
    if PACKED:
        import transformers

        quantization = getattr(transformers, PACKED)(dequantize=True)
    model = ModelClass.from_pretrained(
        MODEL, dtype=DTYPE, attn_implementation=ATTENTION, quantization_config=quantization
    )
    model.config.use_cache = model.config.get_text_config().use_cache = False
    if LORA is None:
        return model
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **LORA))
    if is_checkpointing:
        model.enable_input_require_grads()
    return model


class Collator:
    """Chats as the processor's template writes them; every token but padding is learned."""

    def __init__(self):
        self.processor = AutoProcessor.from_pretrained(MODEL)

    def __call__(self, samples):
        batch = self.processor.apply_chat_template(
            [sample["messages"] for sample in samples],
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            padding=True,
        )
        length = batch["input_ids"].shape[1]
        if length > MAX_LENGTH:
            raise ValueError(f"a sample has {{length}} tokens; the plan is for {{MAX_LENGTH}} at the most")
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        return batch


def samples_of(name):
    with open(name, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def main():
    (arguments,) = HfArgumentParser(TrainingArguments).parse_yaml_file(sys.argv[1])
    trainer = Trainer(
        model=loaded_model(arguments.gradient_checkpointing),
        args=arguments,
        train_dataset=samples_of(DATA),{eval_dataset}
        data_collator=Collator(),{callbacks}
    )
    trainer.train()
    trainer.save_model(){at_the_end}


if __name__ == "__main__":
    main()
'''


_STORAGE = """
            bnb_4bit_quant_storage=DTYPE,"""
"""Of 4-bit weights that FSDP2 shards."""
_EVAL_DATA = """EVAL_DATA = {data!r}  # fill in: such a file of what is evaluated
"""
_EVAL_DATASET = """
        eval_dataset=samples_of(EVAL_DATA),"""
"""Without one a Trainer that evaluates does not start (transformers 5.23 ``trainer.py``)."""
_CALLBACKS = """
        callbacks=[{callback}],"""
_AT_THE_END = """
    trainer.evaluate()"""


def script_text(head: Sequence[str], recipe: Recipe, workload: Workload) -> str:
    """The program; ``head`` are lines for its docstring's place."""
    comments = "".join(f"# {line}\n" for line in head)
    evaluation = recipe.evaluation
    callback = stopping_callback(evaluation)
    is_at_the_end = evaluation is not None and (evaluation.every is Moment.END or evaluation.after_training)
    return comments + PROGRAM.lstrip("\n").format(
        model_class=_model_class(workload.model),
        model=model_name(workload.model),
        data=placeholder("DATA"),
        eval_data="" if evaluation is None else _EVAL_DATA.format(data=placeholder("EVAL_DATA")),
        eval_dataset="" if evaluation is None else _EVAL_DATASET,
        stops="" if callback is None else "EarlyStoppingCallback, ",
        callbacks="" if callback is None else _CALLBACKS.format(callback=callback),
        at_the_end=_AT_THE_END if is_at_the_end else "",
        max_length=workload.seq_len,
        dtype=("float32" if recipe.weight_dtype is WeightDtype.FLOAT32 else recipe.precision.dtype.torch_name),
        attention=_attention(recipe, workload),
        bits=BITS.get(recipe.method),
        storage=_STORAGE if recipe.fsdp and recipe.shards_packed else "",
        packed=_packed(workload.model),
        lora=_lora(recipe, workload),
    )


def _model_class(model: ModelFiles) -> str:
    has_own_class = sees(model) and model.model_type not in CAUSAL_TYPES_WITH_IMAGES
    auto = "AutoModelForImageTextToText" if has_own_class else "AutoModelForCausalLM"
    return thinker_class(model.model_type) or auto


def _packed(model: ModelFiles) -> str | None:
    if model.is_mxfp4:
        return "Mxfp4Config"
    return "FineGrainedFP8Config" if model.is_fp8 else None


def _attention(recipe: Recipe, workload: Workload) -> str | None:
    """The attention to ask for; None where transformers has to choose it for each part."""
    is_default = recipe.attention is AttentionImplementation.SDPA and workload.model.has_eager_tower
    return None if is_default else recipe.attention.value


def _lora(recipe: Recipe, workload: Workload) -> dict[str, object] | None:
    if not recipe.trains_adapters:
        return None
    stacked = stacked_targets(recipe.lora_targets)
    return {
        "r": recipe.lora_rank,
        "lora_alpha": recipe.adapter_alpha,
        "lora_dropout": recipe.lora_dropout,
        "use_rslora": recipe.use_rslora,
        **({"use_dora": True} if recipe.use_dora else {}),
        **({} if recipe.lora_init == DEFAULT_INIT else {"init_lora_weights": recipe.lora_init}),
        "target_modules": _modules(layer_targets(recipe.lora_targets)),
        **({"target_parameters": stacked} if stacked else {}),
        **({} if recipe.lora_exclude is None else {"exclude_modules": _modules(recipe.lora_exclude)}),
        "modules_to_save": trained_embeddings(workload.model) if recipe.train_embeddings else None,
    }


def _modules(names: str) -> str | list[str]:
    """Names as peft takes them: all-linear and regular expressions are text, names a list."""
    if names == ALL_LINEAR or names.startswith(REGEX):
        return names.removeprefix(REGEX)
    return listed_targets(names)

"""A tool by its name: what it can do, and how a setup is written for it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from vlmplan.deepspeed_config import DsConfig, deepspeed_config
from vlmplan.errors import InputError
from vlmplan.hardware import Cluster
from vlmplan.model_types.liger import CUT_LOSS_TYPES, FUSED_LOSS_TYPES
from vlmplan.model_types.thinkers import thinker_class
from vlmplan.other_trainers.assembled import largest_image
from vlmplan.other_trainers.meaning import sees
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.vision_scripts.internvl import INTERNVL
from vlmplan.other_trainers.vision_scripts.llava import LLAVA
from vlmplan.other_trainers.vision_scripts.other_series import READERS as OTHER_SERIES
from vlmplan.other_trainers.vision_scripts.qwen_finetune import QWEN_FINETUNE
from vlmplan.other_trainers.vision_scripts.qwen_series import QWEN_SERIES
from vlmplan.other_trainers.writing import axolotl, llama_factory, ms_swift, plain_trainer, trl
from vlmplan.other_trainers.writing.hugging_face import evaluation_options
from vlmplan.other_trainers.writing.limits import Limit, LimitContext, behaving, first_objection
from vlmplan.other_trainers.writing.record import KnownTool, Tool, WrittenSetup
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import ALL_LINEAR, Batching, LossKind
from vlmplan.recipe.decided import DecidedRecipe
from vlmplan.recipe.evaluation import Evaluation, Moment
from vlmplan.recipe.lora_targets import CLAMPING_TYPES, LINEARS_BESIDE_EXPERTS, linears_by_class
from vlmplan.rules.routers import uncounted_experts
from vlmplan.workload import DEFAULT_IMAGE_SIZE, DEFAULT_NUM_SAMPLES, ModelFiles, Workload

TOOLS: Final[Mapping[Tool, KnownTool]] = {
    known.tool: known for known in (trl.KNOWN, plain_trainer.KNOWN, llama_factory.KNOWN, ms_swift.KNOWN, axolotl.KNOWN)
}

WHOLE_MODELS: Final = (
    "it loads the class that config.json names, which of an Omni checkpoint is the whole model and has no loss; "
    "--for transformers writes a program that loads its thinker"
)
"""trl/scripts/sft.py: AutoModelForImageTextToText or AutoModelForCausalLM, or the class of ``architectures``."""
ONE_TEXT: Final = (
    "it takes prompt and answer for one text, and a model with an encoder and a decoder is given both apart; train "
    "with vlmplan launch"
)
"""transformers' own trainer for such models is Seq2SeqTrainer."""
NO_STACKS: Final = "of all Linears it finds those that are modules, and this model's experts are parameters"
"""LLaMA-Factory's ``find_all_linear_modules``, ms-swift's ``find_all_linears``."""
BY_CLASS: Final = frozenset((Tool.LLAMA_FACTORY, Tool.MS_SWIFT))
PACKS_ALL: Final = (
    "it packs all Linears, and Gemma 3n clamps the weights of some while it trains, which no packed weight "
    "can be; give --method lora, or train with vlmplan launch, which leaves those in 16 bits"
)
"""transformers 5.23 modeling_gemma3n.py ``Gemma3nTextAltUp.predict``: ``weight.data.clamp_`` of an integer (seen: it
fails at the first step); no option of these trainers is ``llm_int8_skip_modules``."""


SCRIPTS_AROUND_THE_TRAINER = (QWEN_FINETUNE, QWEN_SERIES, *OTHER_SERIES, LLAVA, INTERNVL)


def tool_of_trainer(title: str) -> Tool | None:
    """The tool whose reader calls itself so (``TrainerConfig.trainer``), of a script around Hugging Face's Trainer that
    Trainer; None for accelerate, which trains nothing."""
    if title in SCRIPTS_AROUND_THE_TRAINER:
        return Tool.TRANSFORMERS
    return next((tool for tool, known in TOOLS.items() if known.title == title), None)


def title_of(tool: Tool) -> str:
    """The trainer's name and the version whose rules are known."""
    return TOOLS[tool].title


def limits_of(tool: Tool) -> tuple[Limit, ...]:
    return TOOLS[tool].limits


def objection(tool: Tool, recipe: Recipe, model: ModelFiles) -> str | None:
    """Why the tool cannot train the recipe, as a sentence; None if it can."""
    if model.is_encoder_decoder:
        return objection_to_two_texts(tool)
    if tool is Tool.TRL and thinker_class(model.model_type) is not None:
        return f"{TOOLS[tool].title}: {WHOLE_MODELS}"
    if recipe.method.packs_weights and model.model_type in CLAMPING_TYPES:
        return f"{TOOLS[tool].title}: {PACKS_ALL}"
    lacks_loss = model.model_type in CUT_LOSS_TYPES - FUSED_LOSS_TYPES and tool is not Tool.AXOLOTL
    if recipe.loss is LossKind.LIGER and lacks_loss:
        return f"{TOOLS[tool].title}: Liger has no fused loss for {model.model_type}; give another --loss"
    if tool in BY_CLASS and recipe.trains_adapters and _adapts_experts(recipe, model):
        return f"{TOOLS[tool].title}: {NO_STACKS}; give --lora-targets {LINEARS_BESIDE_EXPERTS}"
    sentence = first_objection(TOOLS[tool].limits, LimitContext(recipe=recipe, sees=sees(model)))
    return None if sentence is None else f"{TOOLS[tool].title}: {sentence}"


def _adapts_experts(recipe: Recipe, model: ModelFiles) -> bool:
    return ALL_LINEAR in recipe.lora_targets.split(",") and linears_by_class(model.config) != ALL_LINEAR


def objection_to_experts(tool: Tool, recipe: Recipe, model: ModelFiles) -> str | None:
    """Why the tool stops with the model's experts whatever its file says of their loss; of TRL's tasks a rule says
    so."""
    reason = uncounted_experts(model, weight=0.0) if tool is Tool.TRL and recipe.task is None else None
    return None if reason is None else f"{model.id}: {reason}; train with vlmplan launch"


def objection_to_two_texts(tool: Tool) -> str:
    """Why the tool cannot train a model with an encoder and a decoder."""
    return f"{TOOLS[tool].title}: {ONE_TEXT}"


def behaviour(tool: Tool, recipe: Recipe, model: ModelFiles) -> DecidedRecipe:
    """What the tool does by itself with a recipe of this method, precision and engine, where the user says nothing."""
    does = DecidedRecipe(**behaving(TOOLS[tool].limits, LimitContext(recipe=recipe, sees=sees(model))))
    if not recipe.trains_adapters or tool not in BY_CLASS:
        return does
    return does.completed(DecidedRecipe(lora_targets=linears_by_class(model.config)))


def evaluated_by(tool: Tool, asked: Evaluation, model: ModelFiles) -> Evaluation:
    """What the tool evaluates of ``model`` where this is asked for."""
    known = TOOLS[tool]
    ends = known.evaluates_after_training and asked.every is not Moment.END
    return replace(
        asked,
        on_start=asked.on_start or known.evaluates_on_start,
        after_training=asked.after_training or ends,
        fuses_loss=asked.fuses_loss and not _makes_logits(tool, model),
        load_best_model_at_end=asked.keeps_best,  # which is how its Trainer knows what was best
    )


def _makes_logits(tool: Tool, model: ModelFiles) -> bool:
    return TOOLS[tool].applies_liger_itself and model.model_type in FUSED_LOSS_TYPES


def usual(tool: Tool, model: ModelFiles, batching: Batching | None = None) -> DecidedRecipe:
    """What every setup for the tool is unless the user says otherwise: its loss, the parts that it trains by default,
    the allocator that the written files ask for, and the micro batch that its packed rows need."""
    known = TOOLS[tool]
    rows = known.packed_rows if batching is Batching.PACKED else None
    decided = DecidedRecipe(loss=known.loss, expandable_segments=True, micro_batch=rows, attention=known.attention)
    if not known.freezes_vision or not sees(model):
        return decided
    return decided.completed(DecidedRecipe(train_vision=False, train_projector=False, train_language=True))


def settings_for(
    tool: Tool,
    recipe: Recipe,
    workload: Workload,
    cluster: Cluster,
    *,
    base: DsConfig | None = None,
    largest_parameter: int = 0,
) -> WrittenSetup:
    """What makes the tool train the recipe: the inverse of its reader.

    ``base`` and ``largest_parameter`` are of ``deepspeed_config``. Raises InputError for what the tool cannot do.
    """
    reason = objection(tool, recipe, workload.model)
    if reason is not None:
        raise InputError(reason)
    section = deepspeed_config(recipe, num_gpus=cluster.num_gpus, base=base, largest_parameter=largest_parameter)
    if section is not None and "optimizer" in section:  # the Trainer compares these with its own arguments
        section["optimizer"]["params"] |= dict.fromkeys(("betas", "eps", "weight_decay"), "auto")
    written, evaluation = TOOLS[tool].written(recipe, workload, cluster), recipe.evaluation
    own: Mapping[str, Any] = {} if evaluation is None else TOOLS[tool].evaluation(evaluation)
    options = {
        **written.options,
        **_sample_options(tool, workload),
        **evaluation_options(
            evaluation,
            has_samples=isinstance(own.get("val_size", own.get("val_set_size")), int),
            has_predictions=bool({"compute_accuracy", "eval_metric"} & own.keys()),
            is_after_training=TOOLS[tool].evaluates_after_training,
            makes_logits=_makes_logits(tool, workload.model),
            stops_by_script=TOOLS[tool].stops_by_script,
        ),
    }
    return replace(written, settings={**written.settings, **own}, deepspeed=section, options=options)


def _sample_options(tool: Tool, workload: Workload) -> dict[str, Value]:
    """What no key says of the samples: how many, sounds, and images that are not read off a limit of pixels."""
    options: dict[str, Value] = {}
    if workload.audios_per_sample:
        options |= {"audio_seconds": workload.audio_seconds, "audios_per_sample": workload.audios_per_sample}
    if workload.num_samples != DEFAULT_NUM_SAMPLES:
        options["num_samples"] = workload.num_samples
    if workload.sample_len is not None:
        options["sample_len"] = workload.sample_len
    if not sees(workload.model):
        return options
    if workload.images_per_sample != 1:
        options["images_per_sample"] = workload.images_per_sample
    width, height = workload.image_width, workload.image_height
    if workload.images_per_sample:
        size = f"{width}x{height}"
        default = size if TOOLS[tool].sizes_images else "{}x{}".format(*DEFAULT_IMAGE_SIZE)
        read = largest_image(width * height) if TOOLS[tool].limits_pixels else default
        if read != size:
            options["image_size"] = size
    return options

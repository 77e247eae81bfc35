"""The recipe of a ds_config.json and what the command line says beside it."""

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from vlmplan.deepspeed_config.file import DEFAULT_STAGE, DsConfig
from vlmplan.deepspeed_config.mistakes import Mistakes
from vlmplan.errors import InputError
from vlmplan.recipe import PLAIN, Recipe
from vlmplan.recipe.choices import OptimizerKind, Precision
from vlmplan.recipe.decided import DecidedRecipe, Stage
from vlmplan.recipe.settings import option_name

DEFAULT_GRADIENT_CLIPPING = 1.0
"""``GRADIENT_CLIPPING_DEFAULT`` of DeepSpeed 0.19.8; older releases did not clip."""
KEY_OF_FIELD = {
    "zero_stage": "zero_optimization.stage",
    "offload_optimizer": "zero_optimization.offload_optimizer.device",
    "offload_params": "zero_optimization.offload_param.device",
    "hpz": "zero_optimization.zero_hpz_partition_size",
    "sequence_parallel": "sequence_parallel_size",
    "nvme_path": "zero_optimization.offload_optimizer.nvme_path",
    "precision": "the precision",
    "gradient_clipping": "gradient_clipping",
    "optimizer": "optimizer.type",
    "micro_batch": "train_micro_batch_size_per_gpu",
    "grad_accum": "gradient_accumulation_steps",
}

KEYS_OF_PRECISION = {
    Precision.BF16: "bf16.enabled true",
    Precision.FP16: "fp16.enabled true",
    Precision.FP32: "bf16.enabled and fp16.enabled false",
    Precision.BF16_PURE: "bf16.bf16_master_weights_and_grads true",
}
_ONE_PRECISION = "|".join(sorted((kind.value for kind in Precision), key=len, reverse=True))
_PRECISIONS = re.compile(rf"--precision (?:{_ONE_PRECISION})\b(?:(?:,| or| and) (?:{_ONE_PRECISION})\b)*")
SAID_FIELDS = (
    *("zero_stage", "offload_optimizer", "offload_params", "hpz", "sequence_parallel", "nvme_path", "optimizer"),
)
"""Fields that are taken from the file as they are there."""


def merged_recipe(
    config: DsConfig,
    recipe: Recipe,
    *,
    num_gpus: int,
    given: Collection[str] = (),
    global_batch: int | None = None,
    hidden_size: int | None = None,
) -> Recipe:
    """``recipe`` with everything that the file says, and DeepSpeed's own defaults for what neither says.

    ``given`` are the fields of the recipe that the user set on the command line, ``global_batch`` the samples per
    optimizer step if given there, ``hidden_size`` what sizes that are "auto" are made of. What is "auto" otherwise is
    as in ``recipe``. Raises InputError with every contradiction between the two.
    """
    mistakes = Mistakes(config.source)
    changes: dict[str, object] = {}
    for name in SAID_FIELDS:
        said, current = getattr(config, name), getattr(recipe, name)
        if said is None:
            continue
        if name in given and said != current and not (name == "zero_stage" and current is None):
            mistakes.add(_conflict(name, said, current))
        changes[name] = said
    stage = _stage(config, recipe, given, mistakes)
    changes["precision"] = _precision(config, recipe, given, mistakes)
    changes["gradient_clipping"] = _gradient_clipping(config, recipe, given, mistakes)
    num_groups = num_gpus // (config.sequence_parallel or recipe.sequence_parallel)
    with mistakes.kept():
        micro_batch, grad_accum = batch_sizes(
            config, recipe, num_gpus=num_groups, given=given, global_batch=global_batch
        )
        changes |= {"micro_batch": micro_batch, "grad_accum": grad_accum}
    with mistakes.kept():
        zero = config.zero_settings(stage, hidden_size=hidden_size)
        if recipe.task is not None and recipe.task.is_ms_swifts_grpo:  # ``GRPOConfig.__post_init__``
            zero = replace(zero, stage3_prefetch_bucket_size=0)
        changes |= {"zero_stage": stage, "zero": zero}
    mistakes.report()
    return recipe.with_changes(**changes)


def _precision(config: DsConfig, recipe: Recipe, given: Collection[str], mistakes: Mistakes) -> Precision:
    """The recipe's where the file leaves it open, else the first that it leaves open."""
    if config.precisions is None:
        return recipe.precision if "precision" in given else Precision.FP32
    if recipe.precision in config.precisions:
        return recipe.precision
    if "precision" in given:
        mistakes.add(_conflict("precision", config.precisions[0], recipe.precision))
    return config.precisions[0]


def fixed_by_file(config: DsConfig, *, hidden_size: int | None, stage: Stage | None = None) -> DecidedRecipe:
    """What the file decides for every setup of a search, which chooses the rest.

    ``hidden_size`` is what sizes that are "auto" are made of, ``stage`` the one of the command line, for a file that
    has none. Where both 16-bit precisions are open, none is decided.
    """
    if config.zero_stage is not None or stage is None or stage == PLAIN:
        stage = config.zero_stage or DEFAULT_STAGE
    precision = None
    if config.precisions is None:
        precision = Precision.FP32
    elif not {Precision.BF16, Precision.FP16} <= set(config.precisions):
        precision = config.precisions[0]
    clipping = config.gradient_clipping
    if clipping is None and config.optimizer is OptimizerKind.MUON:
        clipping = DEFAULT_GRADIENT_CLIPPING
    return DecidedRecipe(
        zero_stage=stage,
        offload_optimizer=config.offload_optimizer,
        offload_params=config.offload_params,
        hpz=config.hpz,
        sequence_parallel=config.sequence_parallel,
        nvme_path=config.nvme_path,
        optimizer=config.optimizer,
        micro_batch=config.micro_batch,
        grad_accum=config.grad_accum,
        gradient_clipping=clipping,
        precision=precision,
        zero=config.zero_settings(stage, hidden_size=hidden_size),
    )


def with_keys_of_file(sentence: str, config: DsConfig, given: Collection[str]) -> str:
    """A sentence about a setup, with the file's keys for those options in it that the file decides and nobody gave.

    What stays an option is what no file can say: ``--zero-stage none``.
    """
    said = sentence
    for name, key in KEY_OF_FIELD.items():
        option = option_name(name)
        if name in given or getattr(config, name) is None:
            continue
        if name == "precision":
            said = _PRECISIONS.sub(_precision_keys, said).replace(option, "the precision")
        else:
            said = re.sub(rf"{option}\b" + ("(?! none)" if name == "zero_stage" else ""), key, said)
    return sentence if said == sentence else f"{config.source}: {said}"


def _precision_keys(found: re.Match[str]) -> str:
    """The file's keys for the option of precision with one value or several."""
    values = found[0].removeprefix("--precision ")
    return re.sub(_ONE_PRECISION, lambda value: KEYS_OF_PRECISION[Precision(value[0])], values)


def _stage(config: DsConfig, recipe: Recipe, given: Collection[str], mistakes: Mistakes) -> int:
    if "zero_stage" in given and recipe.zero_stage is None:
        mistakes.add("the file is for DeepSpeed, but --zero-stage none (plain PyTorch) was given")
    if config.zero_stage is not None:
        return config.zero_stage
    return recipe.zero_stage if "zero_stage" in given and recipe.zero_stage is not None else DEFAULT_STAGE


def _gradient_clipping(config: DsConfig, recipe: Recipe, given: Collection[str], mistakes: Mistakes) -> float:
    is_given = "gradient_clipping" in given
    if config.gradient_clipping is None:
        return recipe.gradient_clipping if is_given else DEFAULT_GRADIENT_CLIPPING
    if is_given and config.gradient_clipping != recipe.gradient_clipping:
        mistakes.add(_conflict("gradient_clipping", config.gradient_clipping, recipe.gradient_clipping))
    return config.gradient_clipping


def _conflict(name: str, said: Any, current: Any) -> str:
    said_text, current_text = (str(getattr(value, "value", value)) for value in (said, current))
    current_text = "none" if current is None else current_text
    if isinstance(said, Precision):
        said_text += f" ({KEYS_OF_PRECISION[said]})"
    return (
        f"{KEY_OF_FIELD[name]} is {said_text}, but {option_name(name)} {current_text} was given; "
        f"one of the two has to change"
    )


def batch_sizes(
    config: DsConfig, recipe: Recipe, *, num_gpus: int, given: Collection[str] = (), global_batch: int | None = None
) -> tuple[int, int]:
    """(samples per GPU in a micro batch, micro batches per optimizer step) of file and command line together.

    What neither says follows from the samples per step, as DeepSpeed infers it (``_set_batch_related_parameters``); a
    micro batch that is "auto" is the recipe's, as transformers takes the trainer's, unless the others make it.
    """
    known: dict[str, int] = {}
    mistakes = Mistakes(config.source)
    for name in ("micro_batch", "grad_accum"):
        said, current = getattr(config, name), getattr(recipe, name)
        if said is not None and name in given and said != current:
            mistakes.add(_conflict(name, said, current))
        if said is not None or name in given:
            known[name] = current if said is None else said
    if "train_micro_batch_size_per_gpu" in config.autos and "grad_accum" not in known:
        known.setdefault("micro_batch", recipe.micro_batch)
    mistakes.report()
    total = config.train_batch_size
    if total is not None and global_batch is not None and total != global_batch:
        raise InputError(
            f"{config.source}: train_batch_size is {total}, but --global-batch {global_batch} was given; "
            f"one of the two has to change"
        )
    total_name = "train_batch_size"
    if total is None:
        known.setdefault("micro_batch", recipe.micro_batch)
        total, total_name = global_batch, "--global-batch"
    if total is None:
        return known["micro_batch"], known.get("grad_accum", 1)
    if "micro_batch" in known:
        micro_batch = known["micro_batch"]
        grad_accum = known.get("grad_accum", max(1, total // (micro_batch * num_gpus)))
    else:
        grad_accum = known.get("grad_accum", 1)
        micro_batch = max(1, total // (grad_accum * num_gpus))
    if micro_batch * grad_accum * num_gpus != total:
        raise InputError(
            f"{config.source}: {total} samples per step ({total_name}) are not {num_gpus} GPU(s) x "
            f"{micro_batch} (train_micro_batch_size_per_gpu) x {grad_accum} (gradient_accumulation_steps) = "
            f"{num_gpus * micro_batch * grad_accum}"
        )
    return micro_batch, grad_accum

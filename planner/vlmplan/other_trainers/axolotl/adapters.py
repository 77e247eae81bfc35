"""axolotl's adapters (0.19.0 ``loaders/adapter.py``, ``utils/schemas/peft.py``): sizes, kinds, and what they are on."""

from typing import Final

from vlmplan.other_trainers.adapters import copied_embeddings, lora_options
from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.loaded_adapters import AdapterKeys, take_loaded_or_written
from vlmplan.other_trainers.meaning import Surroundings, sees
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import ALL_LINEAR, REGEX
from vlmplan.recipe.lora_targets import is_lora_init, linears_by_class
from vlmplan.workload import ModelFiles

KERNELS: Final = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")


LOADED: Final = "lora_model_dir"
KEYS_OF_ADAPTERS: Final = AdapterKeys(
    names={"r": "lora_r", "target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save"}
)
NAMED: Final = "lora_target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]"
"""An example: Linears of most language models."""
TRLS_OWN: Final = ("dpo", "ipo", "kto")
"""Values of ``rl`` of which TRL makes new adapters whatever is said (``config_only`` of ``_load_adapters``)."""


def _take_loaded(settings: Settings, around: Surroundings, kind: str) -> None:
    """``lora_model_dir``: adapters that are gone on with, whose own file says how large they are."""
    if kind in TRLS_OWN and settings.is_on(LOADED):
        settings.note(f"{LOADED} is read with rl: {kind} by nobody: new adapters are made, as they are planned")
        settings.ignore((LOADED,))
        return
    if take_loaded_or_written(settings, LOADED, around.folder, KEYS_OF_ADAPTERS):
        settings.make("lora_target_linear", False)


def adapter_options(settings: Settings, model: ModelFiles | None, around: Surroundings, kind: str) -> dict[str, Value]:
    """``kind``: the value of ``rl``."""
    _take_loaded(settings, around, kind)
    for key in ("lora_r", "lora_alpha"):
        if key not in settings:
            settings.refuse_whole(f"{key} is missing; axolotl has no default for it")
    options = lora_options(settings, rank_key="lora_r", rank=8, alpha=16, dropout=0.0)
    initial = settings.text("peft_init_lora_weights", "true").casefold()
    if initial not in ("true", "default") and not is_lora_init(initial):
        settings.refuse("peft_init_lora_weights", NOT_PLANNED)
    elif initial != "true":
        options["lora_init"] = initial
    if "loraplus_lr_ratio" in settings:
        options["loraplus_lr_ratio"] = settings.number("loraplus_lr_ratio", 1.0, least=1.0)
    _note_kernels(settings)
    return options | _targets(settings, model) | copied_embeddings(settings, "lora_modules_to_save")


def _targets(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    """A list of names, a regular expression of whole names, or all Linears but the head (``find_all_linear_names``)."""
    said = settings.raw("lora_target_modules")
    stacked = settings.names("lora_target_parameters")
    if settings.flag("lora_target_linear", False):
        if sees(model):
            settings.refuse(
                "lora_target_linear",
                f"in a model that sees it adapts all whose names end as those of Linears do, convolutions too: "
                f"{NOT_PLANNED}; name the layers, as {NAMED}",
            )
        linears = ALL_LINEAR if model is None else linears_by_class(model.config)
        return {"lora_targets": ",".join([linears, *stacked])}
    if said == ALL_LINEAR:  # peft's own word
        return {"lora_targets": ",".join([ALL_LINEAR, *stacked])}
    if isinstance(said, str):
        if stacked:
            settings.refuse("lora_target_parameters", "beside a regular expression of modules: not planned")
        return {"lora_targets": REGEX + said}
    names = [*settings.names("lora_target_modules"), *stacked]
    if not names:
        settings.refuse_whole("lora_target_modules is missing: no module would have an adapter")
    return {"lora_targets": ",".join(dict.fromkeys(names))}


def _note_kernels(settings: Settings) -> None:
    """``check_auto_enable_lora_kernels``: they are on where nothing is said of them, no code of the model's own is
    trusted, and samples are trained on as they are."""
    said = [settings.maybe_flag(key) for key in KERNELS]
    if any(said[:3]) and settings.maybe_flag("trust_remote_code"):
        settings.refuse("trust_remote_code", "and kernels of LoRA are on, with which axolotl refuses it")
    is_of_samples = not settings.is_on("rl")
    is_silent = is_of_samples and all(flag is None for flag in said) and not settings.maybe_flag("load_in_8bit")
    if any(said[:3]) and settings.maybe_flag("load_in_8bit"):
        settings.refuse("load_in_8bit", "and kernels of LoRA are on, with which axolotl refuses it")
    if any(said) or (is_silent and not settings.maybe_flag("trust_remote_code")):
        settings.note(
            "axolotl's own kernels of LoRA are on"
            + (" by default" if is_silent else "")
            + ": planned as peft's layers, which keep more for backward and take longer; "
            "lora_mlp_kernel, lora_qkv_kernel and lora_o_kernel: false is what is planned"
        )


def adapters_without_effect(settings: Settings) -> None:
    settings.ignore(("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_linear", *KERNELS))
    settings.ignore(("lora_target_parameters", "lora_modules_to_save", "peft_use_rslora", "peft_use_dora"))
    settings.ignore(("peft_init_lora_weights", "loraplus_lr_ratio", "peft_autocast_adapter_dtype", "bnb_config_kwargs"))
    settings.ignore((LOADED,))


def packed_storage(settings: Settings) -> str:
    """``_set_quantization_config``: bfloat16, unless ``bnb_config_kwargs`` say otherwise."""
    return str(settings.table("bnb_config_kwargs").get("bnb_4bit_quant_storage", "bfloat16")).removeprefix("torch.")


def double_quant(settings: Settings) -> bool:
    """``_set_quantization_config``: NF4 with scales that are quantised too, unless ``bnb_config_kwargs`` say otherwise;
    in which type packed bytes are kept changes nothing of their number."""
    own = settings.table("bnb_config_kwargs")
    for key in own.keys() - {
        "bnb_4bit_use_double_quant",
        "bnb_4bit_quant_storage",
        "bnb_4bit_quant_type",
        "load_in_4bit",
    }:
        settings.refuse("bnb_config_kwargs", f"{key}: {NOT_PLANNED}")
    return own.get("bnb_4bit_use_double_quant", True) is not False

"""How a recipe is spread over GPUs: FSDP2 as ``FSDP2Manager`` applies it, or DDP.

Source: Automodel@36044ad3 ``nemo_automodel/components/distributed``: ``config.py`` for keys and defaults, ``fsdp2.py``
and ``parallelizer.py`` (``DefaultParallelizationStrategy``), ``ddp.py``, ``activation_checkpointing.py``.

Weights are sharded in the type in which they are loaded, computed with in bfloat16 and reduced in float32; on one GPU
nothing is sharded and nothing cast. There is no autocast. Before the last micro batch of a step nothing is reduced.
"""

from typing import Final

from vlmplan.other_trainers.hugging_face import plain_options
from vlmplan.other_trainers.meaning import Surroundings
from vlmplan.other_trainers.nemo_automodel.keys import NOT_PLANNED
from vlmplan.other_trainers.nemo_automodel.models import NemoModel
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import NO, YES, Settings
from vlmplan.recipe.choices import AdapterDtype, CheckpointKind, Method, Offload, Precision, ShardUnits

D: Final = "distributed."
STRATEGIES: Final = ("fsdp2", "ddp")
SIZES: Final = {
    "tp_size": "weights that GPUs share in a layer",
    "pp_size": "layers on several GPUs, one after another",
    "cp_size": "samples that GPUs share",
    "ep_size": "experts that GPUs share",
}
"""What each is at more than 1."""
POLICY: Final = {
    "param_dtype": ("bfloat16 is planned", ("bfloat16", "bf16", "torch.bfloat16")),
    "output_dtype": ("bfloat16 is planned", ("bfloat16", "bf16", "torch.bfloat16")),
    "cast_forward_inputs": ("true is planned", ("true",)),
}


def engine_options(settings: Settings, model: NemoModel, around: Surroundings, method: Method) -> dict[str, Value]:
    """The engine, the types of weights and what runs again in backward."""
    strategy = settings.text(f"{D}strategy", STRATEGIES[0]).casefold()
    if strategy not in STRATEGIES:
        settings.refuse(f"{D}strategy", f"{NOT_PLANNED}; {' and '.join(STRATEGIES)} are")
    _refuse_what_has_no_plan(settings, strategy)
    sharded = _sharded(settings, model, around) if strategy == "fsdp2" else {}
    is_alone = around.num_gpus == 1
    checkpoints = _checkpoints(settings, model, is_ddp=strategy == "ddp" and not is_alone)
    leaves_engine = around.uses_deepspeed is not None or around.shards is False
    if leaves_engine:
        settings.note("the file's strategy is left out, as an option says another engine")
    if leaves_engine or strategy == "ddp" or is_alone:
        plain = {} if leaves_engine else _plain(settings, strategy)
        narrow = not model.is_wide or (strategy == "ddp" and is_alone)
        precision = Precision.BF16_PURE if narrow else Precision.FP32
        adapts: dict[str, Value] = {"adapter_dtype": AdapterDtype.MODEL.value} if method is not Method.FULL else {}
        return {**plain, **(adapts if plain else {}), **checkpoints, "precision": precision.value}
    if model.is_wide and (method is not Method.FULL or model.freezes_vision):
        settings.refuse_whole(
            f"weights in float32 of which some are frozen: {NOT_PLANNED}; set model.torch_dtype: bf16"
        )
    precision = Precision.BF16 if model.is_wide else Precision.BF16_PURE
    return {**sharded, **checkpoints, "precision": precision.value}


def _plain(settings: Settings, strategy: str) -> dict[str, Value]:
    options = plain_options(casts=False)
    if strategy == "ddp":
        options["gradient_as_bucket_view"] = settings.flag(f"{D}gradient_as_bucket_view", False)
    return options


def _sharded(settings: Settings, model: NemoModel, around: Surroundings) -> dict[str, Value]:
    reduces = settings.text(f"{D}mp_policy.reduce_dtype", "float32").removeprefix("torch.")
    if reduces not in ("float32", "fp32", "bfloat16", "bf16"):
        settings.refuse(f"{D}mp_policy.reduce_dtype", "float32 or bfloat16 is needed")
    offloads = any(key.startswith(f"{D}offload_policy.") for key in settings.keys)
    place = (Offload.CPU if offloads else Offload.NONE).value
    return {
        "fsdp": True,
        "reduces_in_float32": reduces in ("float32", "fp32"),
        "sync_each_batch": not settings.flag(f"{D}defer_fsdp_grad_sync", True),
        **_units(settings, model),
        **_copies(settings, around),
        "offload_params": place,
        "offload_optimizer": place,
    }


def _copies(settings: Settings, around: Surroundings) -> dict[str, Value]:
    """How many GPUs share a copy of the model, where there are several (``dp_replicate`` of its mesh)."""
    key, num_gpus = f"{D}dp_replicate_size", around.num_gpus
    copies = settings.maybe_count(key) or 1
    if copies == 1:
        return {}
    if num_gpus is None or num_gpus % copies or num_gpus == copies:
        settings.refuse(key, "several GPUs have to share each copy; --gpu says how many there are")
        return {}
    return {"dp_shard_size": num_gpus // copies}


def _units(settings: Settings, model: NemoModel) -> dict[str, Value]:
    """Layers of every list of modules; frozen encoders are the root's."""
    where = settings.text(f"{D}multimodal.frozen_sharding", "root").replace("-", "_")
    if model.has_other_lists and (where != "root" or not model.freezes_vision):
        settings.refuse_whole(f"an encoder of this type that is not frozen in the root: {NOT_PLANNED}")
    if where not in ("root", "per_layer"):
        settings.refuse(f"{D}multimodal.frozen_sharding", f"{NOT_PLANNED}; root and per_layer are")
    of_language = model.freezes_vision and where == "root"
    key = f"{D}reshard_after_forward"
    if key not in settings:
        units = ShardUnits.LANGUAGE_LAST_WHOLE if of_language else ShardUnits.LAST_WHOLE
        return {"shard_units": units.value, "reshard_after_forward": True}
    if settings.flag(key, False):
        settings.refuse(key, f"last layers that are resharded beside a root that is not: {NOT_PLANNED}; leave it out")
    units = ShardUnits.LANGUAGE_LAYERS if of_language else ShardUnits.LAYERS
    return {"shard_units": units.value, "reshard_after_forward": False}


def _checkpoints(settings: Settings, model: NemoModel, *, is_ddp: bool) -> dict[str, Value]:
    """Whole layers of a text model of transformers', unless DDP has it; else attention, MLP and norms of layers, each
    by itself (``_should_use_hf_native_gradient_checkpointing``). Frozen layers are left out."""
    key = f"{D}activation_checkpointing"
    said = settings.text(key, "false").casefold().replace("-", "_")
    if said not in YES | NO | {"full"}:
        settings.refuse(key, f"{NOT_PLANNED}; true, full and false are")
    settings.only(f"{D}activation_checkpointing_scope", f"some layers alone: {NOT_PLANNED}; all is", "all", "['all']")
    is_on = said not in NO
    in_parts = is_ddp or not model.checkpoints_whole
    return {
        "activation_checkpointing": is_on,
        "vision_activation_checkpointing": is_on and model.checkpoints_vision,
        **({"checkpoint_kind": CheckpointKind.PARTS.value} if in_parts else {}),
    }


def _refuse_what_has_no_plan(settings: Settings, strategy: str) -> None:
    for name, what in SIZES.items():
        settings.only(D + name, f"{what}: {NOT_PLANNED}; 1 is", "1")
    if strategy != "fsdp2":
        settings.only(f"{D}dp_replicate_size", "it is of fsdp2 alone; 1 is planned", "1")
    settings.only(f"{D}enable_compile {D}enable_async_tensor_parallel", f"layers that are compiled: {NOT_PLANNED}")
    settings.only(f"{D}enable_fsdp2_prefetch", f"layers that are gathered further ahead: {NOT_PLANNED}")
    settings.only(f"{D}autocast_dtype", f"autocast beside it: {NOT_PLANNED}")
    settings.only(f"{D}bucket_cap_mb", f"buckets of another size than torch's: {NOT_PLANNED}")
    for name, (why, allowed) in POLICY.items():
        settings.only(f"{D}mp_policy.{name}", why, *allowed)
    settings.only("fp8.enabled", f"products in 8 bit: {NOT_PLANNED}")
    settings.only("qat.enabled", f"training that is aware of quantization: {NOT_PLANNED}")
    settings.only(
        "quantization.load_in_4bit quantization.load_in_8bit", f"weights that bitsandbytes packs: {NOT_PLANNED}"
    )
    settings.only("model.backend.te_fp8", f"products in 8 bit: {NOT_PLANNED}")
    if strategy == "ddp":
        settings.only("compile.enabled", f"a model that is compiled: {NOT_PLANNED}")
    elif settings.is_on("compile.enabled"):
        settings.note(
            "compile.enabled is true, but with fsdp2 nothing is compiled unless distributed.enable_compile is"
        )
    settings.ignore((f"{D}dp_size", f"{D}multimodal", f"{D}gradient_as_bucket_view", "compile.enabled"))

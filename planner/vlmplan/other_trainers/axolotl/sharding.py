"""axolotl's FSDP (0.19.0 ``monkeypatch/accelerate/fsdp2.py``), and what becomes of its keys.

Its ``fsdp2_prepare_model`` stands in place of accelerate's (1.13): layers are units and the root has all else, which is
sharded again after forward. No weight is made float32, there or while it is loaded (``_configure_embedding_dtypes`` in
``loaders/model.py``). Each matrix of an adapter is a unit (``_process_lora_module_for_fsdp``), and 4-bit weights are
kept in bfloat16 (``_set_quantization_config``). FSDP1, which is meant without a version, is accelerate's own.
"""

from typing import Final

from vlmplan.other_trainers.fsdp import Sharding
from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.meaning import Surroundings
from vlmplan.other_trainers.parallelism import FOR_FSDP2, check_copies
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings

SHARDING: Final = Sharding(has_ends_apart=False, casts_trained=False, has_adapters_apart=True)
FSDP_OPTIONS: Final = frozenset(
    """activation_checkpointing auto_wrap_policy cpu_ram_efficient_loading offload_params reshard_after_forward
    state_dict_type sync_module_states transformer_layer_cls_to_wrap use_orig_params""".split()
)
"""Keys of ``FSDPConfig`` (``utils/schemas/fsdp.py``) that accelerate is told; it drops others."""


def derive_fsdp(settings: Settings, around: Surroundings) -> dict[str, Value]:
    """``fsdp_config`` shards by itself; without a version it is FSDP1's (``check_fsdp_version_in_fsdp_config``). The
    options of copies of the model that it has."""
    if not settings.is_on("fsdp") and not settings.is_on("fsdp_config"):
        return {}
    if around.uses_deepspeed is not None or around.shards is not None:
        settings.make("fsdp", False)
        settings.note("the file's FSDP is left out, as an option says another engine")
        return {}
    section = {key.removeprefix("fsdp_"): value for key, value in settings.table("fsdp_config").items()}
    is_second = str(settings.raw("fsdp_version") or section.get("version", 1)) == "2"
    if str(section.get("mixed_precision_policy", "bf16")).casefold() not in ("bf16", "none"):
        settings.refuse("fsdp_config", f"mixed_precision_policy: {NOT_PLANNED}; leave it off")
    if is_second and section.get("cpu_ram_efficient_loading") and settings.maybe_flag("load_in_4bit"):
        settings.refuse("fsdp_config", "axolotl takes cpu_ram_efficient_loading of FSDP2 without load_in_4bit alone")
    if section.get("cpu_offload_pin_memory") is False:
        settings.note("cpu_offload_pin_memory is false: host memory is counted as pinned, and copies as from there")
    settings.make("fsdp", settings.value("fsdp") or True)
    told = {key: value for key, value in section.items() if key in FSDP_OPTIONS and value is not None}
    settings.make("fsdp_config", {**told, "version": 2 if is_second else 1})
    return _copies(settings, around.num_gpus, is_second=is_second)


def _copies(settings: Settings, num_gpus: int | None, *, is_second: bool) -> dict[str, Value]:
    """How many GPUs share one copy of the model, where there are several: of ``dp_shard_size`` and the number of copies
    either follows from the other (``_get_parallel_config_kwargs`` in ``utils/distributed.py``)."""
    sharing, copies = (settings.maybe_count(name) or 1 for name in ("dp_shard_size", "dp_replicate_size"))
    for name, size in (("dp_shard_size", sharing), ("dp_replicate_size", copies)):
        if not is_second and size > 1:
            settings.refuse(name, FOR_FSDP2)
    if sharing == copies == 1 or sharing == num_gpus or not is_second:
        return {}
    name, said = ("dp_shard_size", sharing) if copies == 1 else ("dp_replicate_size", copies)
    if sharing > 1 and copies > 1:
        check_copies(settings, copies, sharing, num_gpus)
    elif num_gpus is None:
        settings.refuse(name, "how many GPUs share a copy follows from it and all GPUs; say those with --gpu")
    elif num_gpus % said or num_gpus == copies:
        settings.refuse(name, f"{num_gpus} GPUs cannot be several copies, each shared by several GPUs, so")
    else:
        sharing = sharing if copies == 1 else num_gpus // copies
    return {"dp_shard_size": sharing} if sharing > 1 else {}

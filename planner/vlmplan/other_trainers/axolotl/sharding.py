"""axolotl's FSDP (0.18.0 ``monkeypatch/accelerate/fsdp2.py``), and what becomes of its keys.

Its ``fsdp2_prepare_model`` stands in place of accelerate's (1.13): layers are units and the root has all else, which is
sharded again after forward. No weight is made float32, there or while it is loaded (``_configure_embedding_dtypes`` in
``loaders/model.py``). Each matrix of an adapter is a unit (``_process_lora_module_for_fsdp``), and 4-bit weights are
kept in bfloat16 (``_set_quantization_config``). FSDP1, which is meant without a version, is accelerate's own.
"""

from typing import Final

from vlmplan.other_trainers.assembled import Surroundings
from vlmplan.other_trainers.fsdp import Sharding
from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.settings import Settings

SHARDING: Final = Sharding(has_ends_apart=False, casts_trained=False, has_adapters_apart=True)
FSDP_OPTIONS: Final = frozenset(
    """activation_checkpointing auto_wrap_policy cpu_ram_efficient_loading offload_params reshard_after_forward
    state_dict_type sync_module_states transformer_layer_cls_to_wrap use_orig_params""".split()
)
"""Keys of ``FSDPConfig`` (``utils/schemas/fsdp.py``) that accelerate is told; it drops others."""


def derive_fsdp(settings: Settings, around: Surroundings) -> None:
    """``fsdp_config`` shards by itself; without a version it is FSDP1's (``check_fsdp_version_in_fsdp_config``)."""
    if not settings.is_on("fsdp") and not settings.is_on("fsdp_config"):
        return
    if around.uses_deepspeed is not None or around.shards is not None:
        settings.make("fsdp", False)
        settings.note("the file's FSDP is left out, as an option says another engine")
        return
    section = {key.removeprefix("fsdp_"): value for key, value in settings.table("fsdp_config").items()}
    is_second = str(settings.raw("fsdp_version") or section.get("version", 1)) == "2"
    if str(section.get("mixed_precision_policy", "bf16")).casefold() not in ("bf16", "none"):
        settings.refuse("fsdp_config", f"mixed_precision_policy: {NOT_PLANNED}; leave it off")
    if section.get("cpu_offload_pin_memory") is False:
        settings.note("cpu_offload_pin_memory is false: host memory is counted as pinned, and copies as from there")
    shards, num_gpus = settings.maybe_count("dp_shard_size"), around.num_gpus
    if shards not in (None, 0, 1) and num_gpus is not None and shards != num_gpus:
        settings.refuse("dp_shard_size", f"shards that {num_gpus} GPUs replicate (HSDP) are not planned")
    settings.make("fsdp", settings.value("fsdp") or True)
    told = {key: value for key, value in section.items() if key in FSDP_OPTIONS and value is not None}
    settings.make("fsdp_config", {**told, "version": 2 if is_second else 1})

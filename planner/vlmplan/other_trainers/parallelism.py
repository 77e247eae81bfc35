"""accelerate's ``parallelism_config`` (1.15 ``parallelism_config.py``): more than one GPU for a sample or a weight.

In accelerate's own file the keys begin with ``parallelism_config_`` (``commands/launch.py``).
"""

from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings

KEY = "parallelism_config"
SIZES = {
    "tp_size": "tensor parallelism is not planned",
    "cp_size": "context parallelism (ring attention over FSDP2) is not planned",
    "sp_size": "Ulysses is planned for the bundled trainer (--sequence-parallel); the loss that this trainer takes of "
    "parts of samples is not planned",
}
"""Why each is refused at more than 1."""
WITHOUT_EFFECT = (
    *("cp_backend", "sp_backend", "tp_handler", "cp_handler", "sp_handler", "cp_comm_strategy"),
    *("sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation", "cp_rotate_method"),
)
"""How what is refused above would be done."""


FOR_FSDP2 = "accelerate takes it with FSDP2 alone (fsdp_version: 2), and refuses to start with FSDP1"
"""``_validate_accelerator``, of any size."""


def read_parallelism(settings: Settings, *, shards: bool, is_flat: bool, num_gpus: int | None) -> dict[str, Value]:
    """How many GPUs share one copy of the model (``--dp-shard-size``), where there are several copies; ``shards``: FSDP
    does, FSDP1 where it ``is_flat``. Refuses by its name what gives a sample or a layer to several GPUs, and sizes that
    accelerate refuses (``_validate_accelerator``)."""
    section = {name.removeprefix(f"{KEY}_"): value for name, value in settings.table(KEY).items()}
    inner = Settings(section, source=f"{settings.source}: {KEY}", trainer=settings.trainer)
    for name, why in SIZES.items():
        if inner.count(name, 1, least=1) > 1:
            inner.refuse(name, why)
    num_copies, num_sharing = (inner.count(name, 1, least=1) for name in ("dp_replicate_size", "dp_shard_size"))
    for name, size in (("dp_replicate_size", num_copies), ("dp_shard_size", num_sharing)):
        if is_flat and size > 1:
            inner.refuse(name, FOR_FSDP2)
    has_copies = shards and not is_flat and num_copies > 1
    if has_copies and num_sharing == 1:
        inner.refuse("dp_replicate_size", "FSDP needs GPUs that share a copy; say how many in dp_shard_size")
    elif has_copies:
        check_copies(inner, num_copies, num_sharing, num_gpus)
    inner.ignore(WITHOUT_EFFECT)
    with settings.kept():
        inner.close()
    return {"dp_shard_size": num_sharing} if has_copies and num_sharing > 1 else {}


def check_copies(settings: Settings, num_copies: int, num_sharing: int, num_gpus: int | None) -> None:
    """Refuse numbers of copies, and of GPUs that share one, that do not make all GPUs of the run."""
    if num_gpus not in (None, num_copies * num_sharing):
        settings.refuse("dp_replicate_size", f"times dp_shard_size, {num_sharing}, it has to be {num_gpus}, all GPUs")

"""accelerate's ``parallelism_config`` (1.15 ``parallelism_config.py``): more than one GPU for a sample or a weight.

In accelerate's own file the keys begin with ``parallelism_config_`` (``commands/launch.py``).
"""

from vlmplan.other_trainers.settings import Settings

KEY = "parallelism_config"
SIZES = {
    "tp_size": "tensor parallelism is not planned",
    "cp_size": "context parallelism (ring attention over FSDP2) is not planned",
    "sp_size": "Ulysses is planned for the bundled trainer (--sequence-parallel); the loss that this trainer takes of "
    "parts of samples is not planned",
    "dp_replicate_size": "shards that are replicated (HSDP) are not planned",
}
"""Why each is refused at more than 1."""
WITHOUT_EFFECT = (
    *("dp_shard_size", "cp_backend", "sp_backend", "tp_handler", "cp_handler", "sp_handler", "cp_comm_strategy"),
    *("sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation", "cp_rotate_method"),
)
"""How what is refused above would be done; ``dp_shard_size`` is what is left of the GPUs."""


def refuse_parallelism(settings: Settings) -> None:
    """Refuse by its name what gives a sample or a weight to several GPUs; sizes of 1 are what everybody has."""
    section = {name.removeprefix(f"{KEY}_"): value for name, value in settings.table(KEY).items()}
    inner = Settings(section, source=f"{settings.source}: {KEY}", trainer=settings.trainer)
    for name, why in SIZES.items():
        if inner.count(name, 1, least=1) > 1:
            inner.refuse(name, why)
    inner.ignore(WITHOUT_EFFECT)
    with settings.kept():
        inner.close()

"""accelerate's configuration: ``accelerate launch --config_file FILE.yaml`` (1.15)."""

from collections.abc import Mapping
from typing import Any, Final, cast

from vlmplan.deepspeed_config.content import KEYS
from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict
from vlmplan.other_trainers.fsdp import of_accelerate
from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.launchers import OF_DEEPSPEED, over
from vlmplan.other_trainers.parallelism import KEY
from vlmplan.other_trainers.settings import Settings

ACCELERATE: Final = "accelerate 1.15"
ENGINES = {"NO": "plain PyTorch", "MULTI_GPU": "DDP", "DEEPSPEED": "DeepSpeed", "FSDP": "FSDP"}
WITHOUT_EFFECT = frozenset(
    """compute_environment debug downcast_bf16 enable_cpu_affinity gpu_ids machine_rank main_process_ip
    main_process_port main_training_function rdzv_backend same_network tpu_env tpu_use_cluster tpu_use_sudo use_cpu
    tpu_name tpu_zone command_file commands dynamo_backend mpirun_config""".split()
)
OF_DEEPSPEEDS_OWN: Final = "zero_optimization"
SECTION: Final = "deepspeed_config"
DROPS: Final = "takes no notice"
"""Of a key that its launcher does not know: it makes an argument of it that nothing reads (``commands/launch.py``)."""
NOT_BESIDE_A_FILE = (
    "gradient_accumulation_steps gradient_clipping zero_stage offload_optimizer_device offload_param_device "
    "offload_optimizer_nvme_path offload_param_nvme_path zero3_save_16bit_model"
)
"""Keys of its file with which accelerate does not start beside a DeepSpeed file
(``DeepSpeedPlugin._deepspeed_config_checks``)."""
AUTO: Final = "auto"
MAY_BE_AUTO: Final = ("gradient_accumulation_steps", "gradient_clipping")
"""Keys that its file may leave to the trainer as DeepSpeed's do (``DeepSpeedPlugin.__post_init__``)."""
IN_DEEPSPEED = frozenset(
    """deepspeed_multinode_launcher zero3_init_flag deepspeed_hostfile deepspeed_exclusion_filter
    deepspeed_inclusion_filter deepspeed_moe_layer_cls_names seq_parallel_communication_data_type""".split()
)
"""The last is DeepSpeed's own, which files of TRL have: accelerate's launcher does not hand it on."""
OLDER_PREFETCH = ("fsdp_backward_prefetch_policy", "backward_prefetch_policy")
"""What earlier releases called ``fsdp_backward_prefetch``."""
TRL_FILES: Mapping[str, Mapping[str, Any]] = {
    name: {"mixed_precision": "bf16", "num_processes": 8, **more}
    for name, more in {
        "single_gpu": {"distributed_type": "NO"},
        "multi_gpu": {"distributed_type": "MULTI_GPU"},
        "fsdp1": {
            "distributed_type": "FSDP",
            "fsdp_config": {
                "fsdp_version": 1,
                "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "fsdp_backward_prefetch": "BACKWARD_PRE",
                "fsdp_forward_prefetch": True,
                "fsdp_use_orig_params": True,
            },
        },
        "fsdp2": {
            "distributed_type": "FSDP",
            "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
        },
        "zero1": {
            "distributed_type": "DEEPSPEED",
            "deepspeed_config": {"zero_stage": 1, "gradient_accumulation_steps": 1},
        },
        "zero2": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2}},
        "zero3": {
            "distributed_type": "DEEPSPEED",
            "deepspeed_config": {"zero_stage": 3, "zero3_save_16bit_model": True},
        },
    }.items()
}
"""What TRL's names of accelerate's files decide (``trl/accelerate_configs``, 1.16)."""


def over_file(file: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """accelerate's file with its own options, which go before. Beside a DeepSpeed file options of the command are no
    mistake: they fill in what is "auto" there (``fill_match``), which ``TrainingArguments`` do as well."""
    merged = over(file, own)
    if not isinstance(merged.get(SECTION), dict):
        return merged
    section, in_file = cast(JsonDict, merged[SECTION]), cast(JsonDict, file.get(SECTION) or {})
    if "deepspeed_config_file" not in section:
        return merged
    by_command = set(NOT_BESIDE_A_FILE.split()) - set(in_file)
    return merged | {SECTION: {key: value for key, value in section.items() if key not in by_command}}


def read_accelerate(settings: Settings) -> dict[str, Any]:
    """The keys of ``TrainingArguments`` that accelerate decides in their place: the engine and the precision.

    The number of processes is in a note: how many GPUs there are says ``--gpu``.
    """
    values: dict[str, Any] = {}
    if OF_DEEPSPEEDS_OWN in settings:
        raise InputError(
            f"{settings.source} is a DeepSpeed file, which accelerate launch takes as --deepspeed_config_file, beside "
            f"--use_deepspeed; --config_file needs one of accelerate's own"
        )
    # YAML makes false of NO without quotation marks, which accelerate takes for no engine of its own (launch.py)
    kind = "NO" if settings.raw("distributed_type") is False else settings.text("distributed_type", "NO").upper()
    if kind not in ENGINES:
        settings.refuse("distributed_type", f"{NOT_PLANNED}; {', '.join(ENGINES)} are planned")
    values |= {KEY: settings.table(KEY)} if KEY in settings else {}
    settings.only("megatron_lm_config fp8_config dynamo_config tp_config", NOT_PLANNED)
    sharding = settings.table("fsdp_config")
    older = [key for key in OLDER_PREFETCH if key in sharding]
    sharding = {key: value for key, value in sharding.items() if key not in older}
    if kind == "FSDP" and older:
        settings.note(f"fsdp_config.{older[0]}: {ACCELERATE} has fsdp_backward_prefetch, and {DROPS} of this")
    if kind == "FSDP":
        values |= {"fsdp": True, "fsdp_config": of_accelerate(sharding)}
    precision = settings.text("mixed_precision", "no").casefold()
    if precision not in ("no", "bf16", "fp16"):
        settings.refuse("mixed_precision", f"{NOT_PLANNED}; no, bf16 and fp16 are planned")
    if precision in ("bf16", "fp16"):
        values[precision] = True
    section = settings.table(SECTION)
    if kind == "DEEPSPEED":
        values["deepspeed"] = _deepspeed(section, settings)
    processes, machines = settings.count("num_processes", 1, least=1), settings.count("num_machines", 1, least=1)
    if "num_processes" in settings:
        settings.note(
            f"{settings.source} starts {processes} process{'es' * (processes > 1)} on {machines} "
            f"machine{'s' * (machines > 1)}; --gpu and --num-nodes say on how many GPUs to plan"
        )
    settings.ignore(WITHOUT_EFFECT)
    return values


def _deepspeed(section: Mapping[str, Any], outer: Settings) -> object:
    """A DeepSpeed file, or the configuration that accelerate makes of its own keys (``DeepSpeedPlugin``)."""
    settings = Settings(section, source=f"{outer.source}: deepspeed_config", trainer=ACCELERATE)
    path = settings.text("deepspeed_config_file", "")
    settings.ignore(IN_DEEPSPEED)
    dropped = [key for key in section if key in KEYS and key not in OF_DEEPSPEED]
    if dropped:
        settings.ignore(dropped)
        outer.note(
            f"deepspeed_config.{', '.join(dropped)}: DeepSpeed's own keys, of which {ACCELERATE} {DROPS}; write them "
            f"into a file, and its name under deepspeed_config_file"
        )
    if path:
        for key in NOT_BESIDE_A_FILE.split():
            if key in settings:
                settings.refuse(key, f"accelerate takes it from deepspeed_config_file, {path}, alone; leave it off")
        settings.ignore(NOT_BESIDE_A_FILE.split())
        settings.close()
        return path
    left_open = [key for key in MAY_BE_AUTO if settings.value(key) == AUTO]
    settings.ignore(left_open)
    accumulation = None if MAY_BE_AUTO[0] in left_open else settings.maybe_count(MAY_BE_AUTO[0], least=1)
    clipping = 0.0 if MAY_BE_AUTO[1] in left_open else settings.number(MAY_BE_AUTO[1], 0.0)
    config: dict[str, Any] = {
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": accumulation or AUTO,
        "gradient_clipping": clipping or AUTO,
        "zero_optimization": {
            "stage": settings.count("zero_stage", 2),
            "offload_optimizer": _offload(settings, "optimizer"),
            "offload_param": _offload(settings, "param"),
            "stage3_gather_16bit_weights_on_model_save": settings.flag("zero3_save_16bit_model", False),
        },
    }
    settings.close()
    return config


def _offload(settings: Settings, what: str) -> dict[str, Any]:
    device = settings.text(f"offload_{what}_device", "")
    path = settings.text(f"offload_{what}_nvme_path", "")
    return {"device": device or "none"} | ({"nvme_path": path} if path else {})

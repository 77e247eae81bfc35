"""The keys of other trainers and their defaults, from the source of a release: trainer_keys.py FOLDER

FOLDER holds what ``pip download --no-deps trl==1.16.0 ms-swift==4.6.0 llamafactory==0.9.5 axolotl==0.19.0 verl==0.7.0``
fetched, unpacked, and the repositories of OpenRLHF at 3c3be623 (``openrlhf/``) and NeMo AutoModel at 36044ad3
(``nemo_automodel/``). Nothing of it is imported or run: fields are read from the classes' text, options from the
parsers'. Writes ``tests/other_trainers/keys.json``.
"""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

FILES = {
    "trl": (
        *("trl/trainer/base_config.py", "trl/trainer/sft_config.py", "trl/trainer/model_config.py"),
        "trl/scripts/utils.py:ScriptArguments",
    ),
    "trl dpo": (
        *("trl/trainer/base_config.py", "trl/trainer/dpo_config.py", "trl/trainer/model_config.py"),
        "trl/scripts/utils.py:ScriptArguments",
    ),
    "trl reward": (
        *("trl/trainer/base_config.py", "trl/trainer/reward_config.py", "trl/trainer/model_config.py"),
        "trl/scripts/utils.py:ScriptArguments",
    ),
    "trl kto": (
        *("trl/trainer/base_config.py", "trl/trainer/kto_config.py", "trl/trainer/model_config.py"),
        "trl/scripts/utils.py:ScriptArguments",
    ),
    "trl grpo": (
        *("trl/trainer/base_config.py", "trl/trainer/grpo_config.py", "trl/trainer/model_config.py"),
        *("trl/scripts/utils.py:ScriptArguments", "trl/scripts/grpo.py:GRPOScriptArguments"),
    ),
    "llamafactory": (
        *("llamafactory/hparams/data_args.py", "llamafactory/hparams/model_args.py"),
        *("llamafactory/hparams/finetuning_args.py", "llamafactory/hparams/training_args.py"),
    ),
    "swift": (
        *("swift/arguments/sft_args.py", "swift/arguments/tuner_args.py", "swift/trainers/arguments.py"),
        *(f"swift/arguments/base_args/{name}_args.py" for name in ("base", "data", "model", "quant", "template")),
    ),
    "axolotl": (
        *("axolotl/utils/schemas/config.py:AxolotlInputConfig", "axolotl/utils/schemas/deprecated.py"),
        *("axolotl/utils/schemas/model.py:ModelInputConfig", "axolotl/utils/schemas/model.py:ModelOutputConfig"),
        *("axolotl/utils/schemas/peft.py:LoraConfig", "axolotl/utils/schemas/peft.py:ReLoRAConfig"),
        *("axolotl/utils/schemas/training.py:HyperparametersConfig", "axolotl/utils/schemas/integrations.py"),
        *("axolotl/utils/schemas/training.py:JaggedLRConfig", "axolotl/utils/schemas/multimodal.py:MultiModalConfig"),
        *(
            f"axolotl/integrations/{plugin}/args.py:{name}"
            for plugin, name in (
                *(("liger", "LigerArgs"), ("cut_cross_entropy", "CutCrossEntropyArgs"), ("kd", "KDArgs")),
                *(("kernels", "KernelsArgs"), ("spectrum", "SpectrumArgs"), ("swanlab", "SwanLabConfig")),
                *(("expert_parallel", "ExpertParallelArgs"), ("grokfast", "GrokfastArgs"), ("lm_eval", "LMEvalArgs")),
            )
        ),
    ),
}
"""Files of each trainer's arguments, with the class where there are others in it."""
KEYS = Path(__file__).parents[1] / "other_trainers" / "keys.json"


NEMO_SECTIONS = {
    "distributed": ("distributed/config.py:FSDP2Config", "distributed/config.py:DDPConfig"),
    "step_scheduler": ("training/step_scheduler.py:StepSchedulerConfig",),
    "peft": ("_peft/lora.py:PeftConfig",),
    "checkpoint": ("checkpoint/config.py:CheckpointingConfig",),
    "optimizer": ("optim/optimizer.py:AdamWConfig",),
}
"""The classes below ``nemo_automodel/components`` that sections of a recipe are made into."""


def fields_of(text: str, only: str) -> Iterator[tuple[str, Any]]:
    """Name and default of every annotated field, None where the default is no plain value."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef) or (only and node.name != only):
            continue
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_set_by_users(field):
                yield field.target.id, _default(field.value)


def _is_set_by_users(field: ast.AnnAssign) -> bool:
    words = field.value.keywords if isinstance(field.value, ast.Call) else []
    return not any(
        word.arg == "init" and isinstance(word.value, ast.Constant) and not word.value.value for word in words
    )


def _default(node: ast.expr | None) -> Any:
    if isinstance(node, ast.Call):
        node = next((word.value for word in node.keywords if word.arg == "default"), None)
    if node is None:
        return None
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def keys_of_verl(text: str) -> Iterator[tuple[str, Any]]:
    """Keys with dots of the settings that hydra merges, without the critic's; None where one refers to another."""
    for key, value in _leaves("", yaml.safe_load(text)):
        if not key.startswith("critic.") and not key.endswith("_target_"):
            yield key, None if isinstance(value, str | list) else value


def options_of(text: str) -> Iterator[tuple[str, Any]]:
    """Name and default of every ``parser.add_argument("--name", ...)``."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            name = ast.literal_eval(node.args[0])
            words = {word.arg: word.value for word in node.keywords}
            default = words.get("default")
            yield name.removeprefix("--"), None if default is None else _default(default)


def keys_of_recipes(components: Path) -> Iterator[tuple[str, Any]]:
    """Keys with dots of NeMo AutoModel's recipes."""
    for section, names in NEMO_SECTIONS.items():
        for name in names:
            path, _, only = name.partition(":")
            for key, default in fields_of((components / path).read_text(encoding="utf-8"), only):
                yield f"{section}.{key}", default


def _leaves(prefix: str, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value


def main() -> None:
    folder = Path(sys.argv[1])
    found: dict[str, dict[str, Any]] = {}
    for trainer, names in FILES.items():
        fields: dict[str, Any] = {}
        for name in names:
            path, _, only = name.partition(":")
            fields |= dict(fields_of((folder / path).read_text(encoding="utf-8"), only))
        found[trainer] = {key: value for key, value in sorted(fields.items()) if not key.startswith("_")}
    settings = (folder / "verl/trainer/config/_generated_ppo_trainer.yaml").read_text(encoding="utf-8")
    found["verl"] = dict(sorted(keys_of_verl(settings)))
    for program in ("sft", "dpo", "rm"):
        text = (folder / f"openrlhf/cli/train_{program}.py").read_text(encoding="utf-8")
        found[f"OpenRLHF {program}"] = dict(sorted(options_of(text)))
    found["NeMo AutoModel"] = dict(sorted(keys_of_recipes(folder / "nemo_automodel/components")))
    KEYS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

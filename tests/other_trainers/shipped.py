"""Configurations that other trainers ship, and how vlmplan reads each.

``shipped.jsonl`` holds their texts as they are in the repositories (LLaMA-Factory@ff6d4d12, ms-swift@3602360a,
TRL@f2cd5771, axolotl@067b021c, all Apache License 2.0): every example of supervised fine-tuning or pre-training, of
ms-swift those of ``swift rlhf`` too, of axolotl every one, and every file of DeepSpeed and accelerate that those name.
``python tests/other_trainers/shipped.py FOLDER`` collects them anew, from a folder that holds the repositories as
``llamafactory``, ``swift``, ``trl`` and ``axolotl``; with FOLDER or without it keeps how each is read now, and prints
the table of the documents.
"""

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from vlmplan.errors import VlmplanError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config
from vlmplan.workload import ModelFiles

HERE = Path(__file__).parent
MOST_CHARACTERS = 5_000
"""Of a file beside: longer ones are data."""
SHIPPED, KEPT = HERE / "shipped.jsonl", HERE / "shipped_readings.json"
EXAMPLES = {
    "llamafactory": ("examples/train_*/*", "examples/extras/*/*"),
    "swift": ("examples/**/*.sh", "examples/yaml/deepspeed/sft.*", "examples/**/ray/*.yaml"),
    "trl": ("examples/cli_configs/*.yaml", "trl/scripts/sft.py", "examples/scripts/sft_*.py"),
    "axolotl": ("examples/**/*.yaml", "examples/**/*.yml"),
}
BESIDE = {
    "llamafactory": ("examples/deepspeed/*.json", "examples/accelerate/*.yaml"),
    "swift": ("examples/**/*.json", "examples/train/multi-node/accelerate/*.yaml"),
    "trl": ("trl/accelerate_configs/*.yaml", "examples/accelerate_configs/*.yaml"),
    "axolotl": ("deepspeed_configs/*.json",),
}
FAMILIES = (
    (r"gemma-3-\d+b", "gemma-3-4b"),
    (r"llama-?3[.-]\d*[.-]?\d*-?\d+b", "llama-3.2-1b"),
    (r"llama-2-\d+b", "tinyllama-1.1b"),
    (r"mistral-7b|magistral", "mistral-7b"),
    (r"qwen3-\d+b", "qwen3-0.6b"),
)
"""Models whose layers files name, by names of their kind."""
TITLES = {"llamafactory": "LLaMA-Factory", "swift": "ms-swift", "trl": "TRL", "axolotl": "axolotl"}
TRAINS = re.compile(r"swift (sft|pt|rlhf)\b|cli/(sft|pt|rlhf)\.py|swift\.cli\.(sft|pt|rlhf)\b|llamafactory-cli train")
IS_RUN = re.compile(r"^stage:|model_name_or_path|^base_model:", re.MULTILINE)
COMMAND = re.compile(r"```\n((?:python|accelerate launch)[^`]*?sft[^`]*?)```")
NOT_PLANNED = (
    ("another kind of training", r"task_type is|rlhf|stage is|head of classes|\brl is|reward_model is|Diffusion"),
    ("FSDP", r"fsdp|FSDP"),
    (
        "sequence, tensor or expert parallelism",
        r"sequence_parallel|context_parallel|tensor_parallel|expert_parallel_size",
    ),
    ("an optimizer", r"use_galore|use_apollo|use_badam|use_adam_mini|use_muon|optimizer is|lisa_|optim is"),
    (
        "a kind of adapter",
        r"tuner_type is|finetuning_type is|use_dora|init_weights|lora_target_parameters|tuner_backend|relora|peft is|"
        r"lora_target_linear is",
    ),
    ("a loss", r"loss|cross_entropy"),
    (
        "a number format",
        r"fp8|quant_method|quantization_bit|quantization_method|load_in_8bit|qat is|gptq is|float16 is|quantize_moe|"
        r"model_quantization_config|onebit",
    ),
    ("attention, or packing without flash's", r"attn_implementation|sample_packing is|flash attention"),
    ("layers on several GPUs, one after another", r"devices (for|without) NPROC_PER_NODE|device_map"),
    ("other techniques", r""),
)
"""What is refused, by what the sentence says, the first that fits."""


class Shipped(NamedTuple):
    """A file as it is in a trainer's repository; ``is_run`` tells runs from the files that they name."""

    trainer: str
    path: str
    text: str
    is_run: bool


def shipped() -> list[Shipped]:
    return [Shipped(**json.loads(line)) for line in SHIPPED.read_text(encoding="utf-8").splitlines()]


def write_all(files: list[Shipped], folder: Path) -> None:
    """Lay the files out as in their repositories."""
    for file in files:
        path = folder / file.trainer / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8")


def stand_in(name: str) -> ModelFiles:
    """A packaged model in place of one that cannot be had here: of the same kind, with or without images."""
    same_family = next((known for pattern, known in FAMILIES if re.search(pattern, name, re.IGNORECASE)), None)
    if same_family is not None:
        return find_model(same_family)
    sees = re.search(r"vl|vision|omni|ocr|ovis|keye|minicpm|gemma-?[34]|llama-?4", name, re.IGNORECASE)
    return find_model("qwen2.5-vl-3b" if sees else "qwen2.5-0.5b")


def reading(path: Path) -> TrainerConfig:
    return read_trainer_config(path, Asked(num_gpus=8, find_model=stand_in))


def outcome(file: Shipped, folder: Path) -> str:
    """``read``, or the sentence that refuses."""
    path = folder / file.trainer / file.path
    try:
        reading(path)
    except VlmplanError as error:
        return str(error).replace(str(folder) + "/", "")
    return "read"


def reason(sentence: str) -> str:
    return next(name for name, pattern in NOT_PLANNED if re.search(pattern, sentence))


def table(outcomes: dict[str, str]) -> list[str]:
    """How many of each trainer are read, and why others are not, as lines of Markdown."""
    counts: dict[str, Counter[str]] = {}
    for name, result in outcomes.items():
        counts.setdefault(name.split("/")[0], Counter())[result if result == "read" else reason(result)] += 1
    trainers = sorted(counts)
    reasons = [name for name, _ in NOT_PLANNED if any(name in one for one in counts.values())]
    rows = [
        ("runs", [counts[name].total() for name in trainers]),
        ("**read**", [counts[name]["read"] for name in trainers]),
    ]
    rows += [(f"refused: {reason}", [counts[name][reason] for name in trainers]) for reason in reasons]
    head = [f"| | {' | '.join(TITLES[name] for name in trainers)} |", f"|---|{'---:|' * len(trainers)}"]
    return head + [f"| {name} | {' | '.join(map(str, cells))} |" for name, cells in rows]


def _collected(folder: Path) -> Iterator[dict[str, Any]]:
    for trainer, patterns in EXAMPLES.items():
        root = folder / trainer
        runs = sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_file()})
        for path in runs:
            text = path.read_text(encoding="utf-8", errors="replace")
            name = str(path.relative_to(root))
            if "/megatron/" in name and "deepspeed" not in name:
                continue
            if trainer == "trl" and path.suffix == ".py":
                commands = [match[1].replace("\n\n", "\n") for match in COMMAND.finditer(text)]
                for number, command in enumerate(commands):
                    yield Shipped(trainer, f"{name[:-3]}_{number}.sh", command, True)._asdict()
            elif (
                TRAINS.search(text)
                or (path.suffix in (".yaml", ".yml", ".json") and IS_RUN.search(text))
                or "sft." in name
            ):
                yield Shipped(trainer, name, text, True)._asdict()
        for path in sorted({path for pattern in BESIDE[trainer] for path in root.glob(pattern)} - set(runs)):
            text = path.read_text(encoding="utf-8", errors="replace")
            if len(text) > MOST_CHARACTERS:
                continue
            yield Shipped(trainer, str(path.relative_to(root)), text, False)._asdict()


def main() -> None:
    if len(sys.argv) > 1:
        lines = (json.dumps(one, ensure_ascii=False) for one in _collected(Path(sys.argv[1])))
        SHIPPED.write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = shipped()
    with tempfile.TemporaryDirectory() as name:
        write_all(files, Path(name))
        found = {f"{one.trainer}/{one.path}": outcome(one, Path(name)) for one in files if one.is_run}
    KEPT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()

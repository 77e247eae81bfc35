"""The recipes of fine-tuning that NeMo AutoModel ships, and how vlmplan reads each.

``recipes.jsonl`` holds every YAML file below ``examples/llm_finetune`` and ``examples/vlm_finetune`` of
Automodel@36044ad3 (Apache License 2.0), without lines that are comments alone.
``python tests/other_trainers/nemo_automodel/shipped_recipes.py FOLDER`` collects them anew from a checkout; with FOLDER
or without it keeps how each is read now, and prints the table of the documents.
"""

import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

from other_trainers.shipped import stand_in as stand_in_of_others
from vlmplan.errors import VlmplanError
from vlmplan.models import alias_of_absent, find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config
from vlmplan.workload import ModelFiles

HERE = Path(__file__).parent
RECIPES, KEPT = HERE / "recipes.jsonl", HERE / "readings.json"
PLACES = ("examples/llm_finetune/**/*.yaml", "examples/vlm_finetune/**/*.yaml")
TYPES = (
    (r"deepseek-v|moonlight", "deepseek_v3"),
    (r"ernie-4\.5-21b", "ernie4_5_moe"),
    (r"gemma-4", "gemma4"),
    (r"glm-4\.[57]|glm-5", "glm4_moe"),
    (r"gpt-oss", "gpt_oss"),
    (r"hy3|hy-mt2|hunyuan-mt", "hy_v3"),
    (r"inkling", "inkling_mm_model"),
    (r"kimi-linear", "kimi_linear"),
    (r"kimi-vl", "kimi_vl"),
    (r"kimi", "kimi_k25"),
    (r"laguna", "laguna"),
    (r"ling-|ring-", "bailing_moe_v2"),
    (r"llava-onevision-1\.5", "llavaonevision1_5"),
    (r"mimo", "mimo_v2_flash"),
    (r"minimax-m3", "minimax_m3_vl"),
    (r"minimax", "minimax_m2"),
    (r"ministral", "ministral3"),
    (r"mistral-small-4", "mistral4"),
    (r"muse-glimmer", "muse_glimmer"),
    (r"nemotron-(3-)?nano|nemotron-3|nemotron-nano-9b", "nemotron_h"),
    (r"nemotron-parse", "nemotron_parse"),
    (r"qwen3-vl-\d+b-a", "qwen3_vl_moe"),
    (r"qwen3-vl", "qwen3_vl"),
    (r"qwen3\.[568]-.*a\d+b", "qwen3_5_moe"),
    (r"qwen3\.[568]", "qwen3_5"),
    (r"qwen3-next", "qwen3_next"),
    (r"qwen3-.*a\d+b", "qwen3_moe"),
    (r"step-?3", "step3p7"),
)
"""Model types of those of which it has an implementation of its own, by what models of that type are called."""
REASONS = (
    ("GPUs that share samples, layers, experts or weights", r"distributed\.(t|p|c|e)p_size|dp_replicate_size"),
    ("a model of its own", r"implementation of its own|model\._target_|model\.config"),
    ("8-bit products, or packed weights", r"fp8\.enabled|qat\.enabled|quantization\.|te_fp8"),
    ("samples that are packed", r"packed_sequence"),
    ("a loss", r"loss_fn"),
    ("Megatron's FSDP", r"distributed\.strategy"),
    ("an optimizer", r"optimizer\."),
    ("adapters with dropout, or others", r"peft"),
    ("other techniques", r""),
)
"""What is refused, by what the sentence says, the first that fits."""


def recipes() -> dict[str, str]:
    """Their texts by their paths."""
    return dict(json.loads(line) for line in RECIPES.read_text(encoding="utf-8").splitlines())


def stand_in(name: str) -> ModelFiles:
    """The packaged model of this name, one of its kind, or no more than a type."""
    alias = "gemma-4-31b" if "gemma-4-31b" in name.lower() else alias_of_absent(name)
    if alias is not None:
        return find_model(alias)
    found = next((kind for pattern, kind in TYPES if re.search(pattern, name, re.IGNORECASE)), None)
    return stand_in_of_others(name) if found is None else ModelFiles(id=name, config={"model_type": found})


def reading(path: Path) -> TrainerConfig:
    return read_trainer_config(path, Asked(num_gpus=8, find_model=stand_in))


def outcomes(texts: dict[str, str], folder: Path) -> dict[str, str]:
    """``read``, or the sentence that refuses, of each; they are laid out in ``folder`` as in the repository."""
    found: dict[str, str] = {}
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        try:
            reading(path)
        except VlmplanError as error:
            found[name] = str(error).replace(f"{folder}/", "")
        else:
            found[name] = "read"
    return found


def reason(sentence: str) -> str:
    return next(name for name, pattern in REASONS if re.search(pattern, sentence))


def table(found: dict[str, str]) -> list[str]:
    """How many are read, and why others are not, as lines of Markdown."""
    kinds = ("llm_finetune", "vlm_finetune")
    counts = {kind: Counter[str]() for kind in kinds}
    for name, result in found.items():
        counts[name.split("/")[1]][result if result == "read" else f"refused: {reason(result)}"] += 1
    rows = [
        ("recipes", [counts[kind].total() for kind in kinds]),
        ("**read**", [counts[kind]["read"] for kind in kinds]),
    ]
    rows += [(f"refused: {name}", [counts[kind][f"refused: {name}"] for kind in kinds]) for name, _ in REASONS]
    head = ["| | text | images |", "|---|---:|---:|"]
    return head + [f"| {name} | {' | '.join(map(str, cells))} |" for name, cells in rows if any(cells)]


def main() -> None:
    if len(sys.argv) > 1:
        root = Path(sys.argv[1])
        lines: list[str] = []
        for path in sorted({path for place in PLACES for path in root.glob(place)}):
            text = path.read_text(encoding="utf-8")
            kept = "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("#"))
            lines.append(json.dumps([str(path.relative_to(root)), kept], ensure_ascii=False))
        RECIPES.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        found = outcomes(recipes(), Path(folder))
    KEPT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()

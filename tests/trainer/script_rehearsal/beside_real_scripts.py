"""Rehearsed bytes of scripts beside those of the same scripts really run on CPU ranks, of every phase, as a table.

PYTHONPATH=tests:tests/trainer python tests/trainer/script_rehearsal/beside_real_scripts.py [WORD ...]

With words, only scripts that have all of them in their name; without, the report beside this file is written anew
(about five minutes). Models are tiny and their weights are on disk.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from prepared import run_prepared

from vlmplan_trainer.models.tiny import Family, write_tiny_model

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
REHEARSAL = Path(__file__).parents[3] / "trainer" / "vlmplan_trainer" / "script_rehearsal" / "__main__.py"
REPORT = HERE / "README.md"
HEAD = """# Scripts rehearsed, beside the same scripts really run

Largest error of a phase's peak over three steps, against the storages of the real run on CPU ranks over gloo.
Made by `beside_real_scripts.py`.

"""
NUM_STEPS = 3
PHASES = ("load", "init", "forward", "backward", "step", "evaluation", "save")
MODELS: Mapping[str, Family] = {"llama": "llama", "qwen2_vl": "qwen2_vl"}
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
BUCKETS = {"allgather_bucket_size": 100_000, "reduce_bucket_size": 100_000}
BATCH = dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto")
FOUR_BITS = "llama-4bit"
"""A folder whose weights are quantised already."""
SCRIPT_WORDS = {
    "plain": ("plain_loop.py", {"alone": ("", 1)}),
    "loop": (
        "own_loop.py",
        {
            "alone": ("", 1),
            "qlora": ("--method qlora --accum 2", 1),
            "qlora-from-4-bits": (f"--method lora --model {FOUR_BITS}", 1),
            "ddp": ("--engine ddp", 2),
            "ddp-lora": ("--engine ddp --method lora --accum 2", 2),
            "ddp-checkpointing": ("--engine ddp --checkpointing", 2),
            "fsdp1": ("--engine fsdp1", 2),
            "fsdp2": ("--engine fsdp", 2),
        },
    ),
    "deepspeed": (
        "deepspeed_loop.py",
        {
            "zero1": ("--stage 1", 2),
            "zero2": ("--stage 2 --accum 2 --save", 2),
            "zero2-qlora": ("--stage 2 --method qlora", 2),
            "zero3": ("--stage 3", 2),
            "zero3-lora": ("--stage 3 --method lora --accum 2 --checkpointing", 2),
        },
    ),
    "trainer": (
        "hugging_face.py",
        {
            "alone": ("", 1),
            "accumulation": ("--accum 2 --checkpointing --save", 1),
            "lora": ("--method lora --checkpointing", 1),
            "qlora": ("--method qlora --checkpointing", 1),
            "ddp": ("", 2),
            "ddp-lora": ("--method lora --accum 2", 2),
            "zero1": ("--deepspeed zero1.json", 2),
            "zero2": ("--deepspeed zero2.json --accum 2 --save", 2),
            "zero3": ("--deepspeed zero3.json", 2),
            "zero3-lora": ("--deepspeed zero3.json --method lora --checkpointing", 2),
            "images": ("--model qwen2_vl", 1),
            "images-zero2": ("--model qwen2_vl --method lora --deepspeed zero2.json", 2),
            "images-zero3": ("--model qwen2_vl --deepspeed zero3.json", 2),
            "images-zero3-checkpointing": ("--model qwen2_vl --deepspeed zero3.json --checkpointing", 2),
        },
    ),
    "accelerate": (
        "accelerate_loop.py",
        {
            "alone": ("--accum 2 --save", 1),
            "ddp": ("--checkpointing", 2),
            "ddp-lora": ("--method lora --accum 2", 2),
            "fsdp2": ("--fsdp --accum 2", 2),
        },
    ),
}
"""Of each script: words and ranks of its cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A script with its arguments, and how many ranks run it."""

    script: str
    words: tuple[str, ...]
    num_ranks: int


def _cases() -> Iterator[tuple[str, Case]]:
    for kind, (script, cases) in SCRIPT_WORDS.items():
        for name, (words, num_ranks) in cases.items():
            yield f"{kind}-{name}", Case(script=script, words=tuple(words.split()), num_ranks=num_ranks)


CASES = dict(_cases())


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The highest point of one phase of one step."""

    phase: str
    step: int
    real_bytes: int
    rehearsed_bytes: int

    @property
    def error(self) -> float:
        return self.rehearsed_bytes / self.real_bytes - 1


@cache
def prepared_folder() -> Path:
    """Where scripts run: models and DeepSpeed's configurations. It goes when this process ends."""
    holder = tempfile.TemporaryDirectory()
    _held.append(holder)
    folder = Path(holder.name)
    for name, family in MODELS.items():
        write_tiny_model(folder / name, family, hidden_size=128, vocab_size=2048)
    for stage in (1, 2, 3):
        section = {"stage": stage, "overlap_comm": False, **BUCKETS}
        (folder / f"zero{stage}.json").write_text(json.dumps(BATCH | {"zero_optimization": section}))
    return folder


_held: list[Any] = []


def write_four_bits(folder: Path) -> None:
    """The tiny Llama as bitsandbytes saves it."""
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    packed = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    model = AutoModelForCausalLM.from_pretrained(folder / "llama", dtype=torch.float32, quantization_config=packed)
    model.save_pretrained(folder / FOUR_BITS)


def rehearsed(case: Case) -> list[dict[str, Any]]:
    """The phases of the first rank."""
    with tempfile.TemporaryDirectory() as folder:
        request = {
            "words": ["python", str(SCRIPTS / case.script), *case.words],
            "world": {"rank": 0, "gpus_per_node": case.num_ranks, "num_nodes": 1},
            "num_steps": NUM_STEPS,
            "card": None,
            "folder": folder,
            "cwd": str(prepared_folder()),
            "assumptions": [],
            "allows_network": False,
            "longest": False,
        }
        done = run_prepared(REHEARSAL, environment=ENVIRONMENT, stdin=json.dumps(request))
    assert done.stdout, done.stderr[-5000:]
    answer = json.loads(done.stdout)
    assert "error" not in answer, answer["error"] + done.stderr[-3000:]
    return answer["phases"]


def really_run(case: Case) -> list[dict[str, Any]]:
    """The phases of the first rank, as ``real_script.py`` writes them."""
    folder = prepared_folder()
    result = folder / "real.json"
    result.unlink(missing_ok=True)
    arguments = [str(result), str(SCRIPTS / case.script), *case.words]
    done = run_prepared(HERE / "real_script.py", arguments, num_ranks=case.num_ranks, environment=ENVIRONMENT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    return json.loads(result.read_text())


def compared(case: Case) -> list[Line]:
    """Every phase of every step. What is saved is counted, and made on a real run alone."""
    if FOUR_BITS in case.words and not (prepared_folder() / FOUR_BITS).exists():
        write_four_bits(prepared_folder())
    real = {(one["name"], one["step"]): one["peak_bytes"] for one in really_run(case)}
    found = {(one["name"], one["step"]): one["peak_bytes"] for one in rehearsed(case)}
    assert found.keys() == real.keys(), (sorted(found), sorted(real))
    return [
        Line(phase=name, step=step, real_bytes=peak, rehearsed_bytes=found[name, step])
        for (name, step), peak in real.items()
    ]


def largest_error(lines: Sequence[Line], phase: str) -> float | None:
    """With its sign; None where there is no such phase."""
    return max((one.error for one in lines if one.phase == phase), key=abs, default=None)


def row(name: str, lines: Sequence[Line]) -> str:
    """Real peak and largest error of each phase over all steps."""
    peak = max(one.real_bytes for one in lines)
    errors = (largest_error(lines, phase) for phase in PHASES)
    cells = ["-" if error is None else f"{round(100 * error, 2) + 0:+.2f}%" for error in errors]
    return f"| {name} | {CASES[name].num_ranks} | {peak / 2**20:.2f} | " + " | ".join(cells) + " |"


def table(words: Sequence[str]) -> Iterator[str]:
    """Line by line: the head, and a row for each script that has all ``words`` in its name."""
    yield "| script | ranks | real peak (MiB) | " + " | ".join(PHASES) + " |"
    yield "|---" + "|---:" * (2 + len(PHASES)) + "|"
    for name, case in CASES.items():
        if all(word in name for word in words):
            yield row(name, compared(case))


def main(words: Sequence[str]) -> None:
    lines: list[str] = []
    for line in table(words):
        print(line, flush=True)
        lines.append(line)
    if not words:
        REPORT.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The whole command line called in this process: exit code, standard output and standard error."""

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from hub_server import isolated_cache
from vlmplan.cli.command_line import run
from vlmplan.request import Request, parse

DONE, MENDABLE, USAGE, DOES_NOT_FIT = 0, 1, 2, 3
"""Exit codes."""
TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
"""A config.json of which every number is small."""
FEW_LAYERS = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 128_000,
}
"""Few layers, so that it is traced quickly, and logits that fill a card."""
SWITCHES = {
    "train_vision": ("--train-vision", "--freeze-vision"),
    "train_projector": ("--train-projector", "--freeze-projector"),
    "train_language": ("--train-language", "--freeze-language"),
    "activation_checkpointing": ("--activation-checkpointing", "--no-activation-checkpointing"),
    "vision_activation_checkpointing": ("--vision-activation-checkpointing", "--no-vision-activation-checkpointing"),
    "fuses_optimizer": ("--fused-optimizer", "--foreach-optimizer"),
    "upcasts_frozen": ("--kbit-upcast", "--no-kbit-upcast"),
    "use_double_quant": ("--double-quant", "--no-double-quant"),
    "expandable_segments": ("--expandable-segments", "--no-expandable-segments"),
}
VALUES = (
    *("seq_len", "images_per_sample", "num_samples", "epochs", "global_batch", "method", "precision", "optimizer"),
    *("zero_stage", "offload_optimizer", "offload_params", "micro_batch", "grad_accum", "attention", "loss"),
)
"""Options that take the value that ``recipe`` of the JSON has under their name."""


@dataclass(frozen=True)
class Call:
    """What one command printed and returned."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.out)


def call(*words: str) -> Call:
    """``vlmplan WORD...``. Whatever it raises is a failure of the test: a user would see a traceback."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    return Call(code, out.getvalue(), err.getvalue())


def request_of_words(command: click.Command, *words: str) -> Request:
    """What a command is asked for with these words."""
    values = command.make_context(str(command.name), list(words)).params
    return parse({name: value for name, value in values.items() if name in Request().options()})


def isolate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run in an empty folder, without the user's catalogs, caches and colours."""
    isolated_cache(monkeypatch, tmp_path)
    for name in ("XDG_CONFIG_HOME", "APPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "config"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)


def refusal(*words: str, code: int = MENDABLE) -> str:
    """The one sentence with which a command is refused; nothing goes to standard output."""
    found = call(*words)
    assert (found.code, found.out) == (code, ""), found
    assert found.err.startswith("vlmplan")
    assert found.err.endswith("\n")
    assert found.err.count("\n") == 1, found.err
    return found.err.strip()


def says(sentence: str, *parts: str) -> None:
    """The sentence has every part."""
    missing = [part for part in parts if part not in sentence]
    assert not missing, f"{missing} not in: {sentence}"


def folder_of(name: str, config: Any, **files: str) -> Path:
    """A model's folder here; ``config`` is config.json as text or as what it holds."""
    folder = Path(name)
    folder.mkdir()
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "config.json").write_text(text, encoding="utf-8")
    for stem, content in files.items():
        (folder / f"{stem}.json").write_text(content, encoding="utf-8")
    return folder


def options_of(plan: dict[str, Any]) -> Sequence[str]:
    """The command line that asks ``estimate`` for a plan of ``recommend --json``."""
    recipe = plan["recipe"]
    words = ["--model", recipe["model"], "--gpu", f"{plan['gpu']}:{plan['num_gpus']}"]
    words += ["--num-nodes", str(plan["num_nodes"])]
    for name in VALUES:
        words += ["--" + name.replace("_", "-"), str(recipe[name])]
    if recipe["image_size"] is not None:
        words += ["--image-size", recipe["image_size"]]
    if recipe["method"] != "full":
        words += ["--lora-rank", str(recipe["lora_rank"]), "--lora-targets", recipe["lora_targets"]]
        words += ["--train-embeddings" if recipe["train_embeddings"] else "--no-train-embeddings"]
    return words + [on if recipe[name] else off for name, (on, off) in SWITCHES.items()]


def option_words(options: Mapping[str, object]) -> list[str]:
    """Options as the words of a command line; None is not given."""
    words: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words += [f"--{flag}", str(value)]
    return words

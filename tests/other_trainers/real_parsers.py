"""What is written for another trainer goes through that trainer's own parser and comes back as the same setup.

Two parts, as the parsers need environments of their own (``requirements/`` beside this file, ``.ci/run`` builds them):

    python tests/other_trainers/real_parsers.py write DIR          setups of every trainer, method and engine
    ENV/bin/python tests/other_trainers/real_parsers.py parse TRAINER DIR

The second parses each file as the trainer does when it starts, gives what the parser made of it, defaults and all, to
vlmplan's reader, and compares the setup with the one that was written. A card is played: parsers refuse bf16 without.
"""

import json
import os
import socket
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

GPUS = 1
"""Parsers start the processes' group, so they are asked of one process."""
SETUPS = [
    (method, engine)
    for method in ("full", "lora", "qlora")
    for engine in (None, 2, 3, "fsdp")
    if (method, engine) not in (("qlora", 3), ("qlora", "fsdp"))
]
WITHOUT_FSDP2 = ("llamafactory",)
IN_READER = {"trl": "trl", "llamafactory": "llamafactory", "ms-swift": "swift", "transformers": "Trainer"}


def write(folder: Path) -> None:
    """The files of every setup, and what they mean, under ``folder/TRAINER/METHOD-ENGINE``."""
    import yaml

    from vlmplan.models import find_model
    from vlmplan.other_trainers.writing import DS_CONFIG_FILE, Tool, settings_for
    from vlmplan.recipe import Recipe
    from vlmplan.recipe_choices import Method
    from vlmplan.workload import Workload
    from written_setups import cluster_of, within

    model = tiny_model(folder / "model")
    workload = Workload(model=find_model(str(model)), seq_len=2 * 3 * 5 * 7, epochs=1.5)
    for tool in Tool:
        for method, engine in SETUPS:
            if engine == "fsdp" and tool.value in WITHOUT_FSDP2:
                continue
            chosen: dict[str, Any] = {"fsdp": True} if engine == "fsdp" else {"zero_stage": engine}
            recipe = Recipe(method=Method(method), micro_batch=2, grad_accum=3, lora_rank=5, **chosen)
            written = settings_for(tool, within(tool, recipe, workload.model), workload, cluster_of(GPUS))
            place = folder / tool.value / f"{method}-{engine}"
            place.mkdir(parents=True)
            (place / "train.yaml").write_text(yaml.safe_dump(dict(written.settings), sort_keys=False), encoding="utf-8")
            if written.deepspeed is not None:
                (place / DS_CONFIG_FILE).write_text(json.dumps(written.deepspeed), encoding="utf-8")
            (place / "options.json").write_text(json.dumps(dict(written.options)), encoding="utf-8")
    print(f"{len(SETUPS)} setups for each of {', '.join(tool.value for tool in Tool)}")


def tiny_model(folder: Path) -> Path:
    """A folder that parsers take for a model: a configuration alone."""
    from cli_calls import TINY

    folder.mkdir(parents=True)
    config = TINY | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


# -- in a trainer's environment -----------------------------------------------------------------------------------


def play_a_card() -> None:
    """One process of a group, and a card that computes in bfloat16."""
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), DS_ACCELERATOR="cpu")
    import transformers.training_args as arguments
    from transformers import utils

    for module in (arguments, utils, utils.import_utils):
        for name in ("is_torch_bf16_gpu_available", "is_torch_fp16_available_on_device"):
            if hasattr(module, name):
                setattr(module, name, lambda *_: True)


def parsed_by_trl(file: Path) -> list[Any]:
    from trl.scripts.sft import make_parser

    script, training, model, data = make_parser().parse_args_and_config(["--config", str(file)])
    return [script, training, model, data]


def parsed_by_llamafactory(file: Path) -> list[Any]:
    import yaml
    from llamafactory.hparams import get_train_args

    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    values["overwrite_cache"] = True
    model, data, training, tuning, _ = get_train_args(values)
    return [model, data, training, tuning]


def parsed_by_swift(file: Path) -> list[Any]:
    from swift.arguments import SftArguments
    from swift.cli.main import parse_yaml_args
    from swift.utils import parse_args

    words = [str(file)]
    parse_yaml_args(words)
    words += ["--model_type", "qwen2", "--template", "qwen2_5"]  # which a name on the Hub tells
    arguments, rest = parse_args(SftArguments, words)
    assert not rest, f"not parsed: {rest}"
    return [arguments]


def parsed_by_transformers(file: Path) -> list[Any]:
    from transformers import HfArgumentParser, TrainingArguments

    return list(HfArgumentParser(TrainingArguments).parse_yaml_file(str(file)))


PARSERS = {
    "trl": parsed_by_trl,
    "transformers": parsed_by_transformers,
    "llamafactory": parsed_by_llamafactory,
    "ms-swift": parsed_by_swift,
}


def plain(value: Any) -> Any:
    """A value as a file has it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value).removeprefix("torch.")


def as_file(parsed: list[Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """All keys with what the parser made of them; those that the file is silent of where they are not the default."""
    import dataclasses

    values: dict[str, Any] = {}
    for group in parsed:
        for item in dataclasses.fields(group):
            value = plain(getattr(group, item.name))
            default = None if item.default is dataclasses.MISSING else plain(item.default)
            if item.init and (item.name in said or value != default):
                values[item.name] = value
    return values


def meaning(trainer: str, values: Mapping[str, Any], folder: Path) -> tuple[Any, ...]:
    """What vlmplan's reader makes of keys and values."""
    from vlmplan.models import find_model
    from vlmplan.other_trainers.assembled import Surroundings
    from vlmplan.other_trainers.read import READERS
    from vlmplan.other_trainers.settings import Settings

    name, read = READERS[IN_READER[trainer]]
    named = values.get("model_name_or_path", values.get("model"))
    model = find_model(named) if named else None
    around = Surroundings(folder=folder, num_gpus=GPUS)
    config = read(Settings(values, source="train.yaml", trainer=name), model, around)
    ds_config = None if config.ds_config is None else config.ds_config.content
    return dict(config.options), config.gradient_clipping, ds_config


def parse(trainer: str, folder: Path) -> int:
    """Parse every file of a trainer; the number of those that come back otherwise."""
    import yaml

    play_a_card()
    num_others = 0
    for place in sorted((folder / trainer).iterdir()):
        os.chdir(place)
        said = yaml.safe_load((place / "train.yaml").read_text(encoding="utf-8"))
        parsed = as_file(PARSERS[trainer](place / "train.yaml"), said)
        unparsed = said.keys() - parsed.keys() - {"env", "ENV"}
        written, came_back = meaning(trainer, said, place), meaning(trainer, parsed, place)
        is_same = written == came_back and not unparsed
        num_others += not is_same
        print(
            f"{'same ' if is_same else 'OTHER'} {trainer} {place.name}: {len(said)} keys, {len(parsed)} back",
            flush=True,
        )
        if not is_same:
            print(f"  written {written}\n  parsed  {came_back}\n  not parsed {sorted(unparsed)}")
    return num_others


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]).resolve())
    else:
        sys.exit(min(1, parse(sys.argv[2], Path(sys.argv[3]).resolve())))

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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any

FILES_BY_CHANCE = 300
GPUS = 1
"""Parsers start the processes' group, so they are asked of one process."""
SETUPS = [
    (method, engine)
    for method in ("full", "lora", "qlora")
    for engine in (None, 2, 3, "fsdp")
    if (method, engine) != ("qlora", 3)
]
NOT_UNDER_FSDP2 = {"llamafactory": ("qlora",)}
IN_READER = {
    "trl": "trl",
    "llamafactory": "llamafactory",
    "ms-swift": "swift",
    "transformers": "Trainer",
    "axolotl": "axolotl",
}


def write(folder: Path) -> None:
    """The files of every setup, and what they mean, under ``folder/TRAINER/METHOD-ENGINE``."""
    import yaml

    from vlmplan.models import find_model
    from vlmplan.other_trainers.writing import DS_CONFIG_FILE, Tool, settings_for, usual
    from vlmplan.recipe import Recipe
    from vlmplan.recipe.choices import Method, Precision
    from vlmplan.workload import Workload
    from written_setups import cluster_of, within

    model = tiny_model(folder / "model")
    workload = Workload(model=find_model(str(model)), seq_len=2 * 3 * 5 * 7, epochs=1.5)
    for tool in Tool:
        for method, engine in SETUPS:
            if engine == "fsdp" and method in NOT_UNDER_FSDP2.get(tool.value, ()):
                continue
            chosen: dict[str, Any] = {"fsdp": True} if engine == "fsdp" else {"zero_stage": engine}
            if engine == "fsdp" and tool is Tool.AXOLOTL and method == "full":  # whose shards are in 16 bit
                chosen["precision"] = Precision.BF16_PURE
            recipe = Recipe(method=Method(method), micro_batch=2, grad_accum=3, lora_rank=5, **chosen)
            recipe = within(tool, usual(tool, workload.model).applied_to(recipe), workload.model)
            written = settings_for(tool, recipe, workload, cluster_of(GPUS))
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
    import deepspeed
    import transformers.training_args as arguments
    from transformers import utils

    for module in (arguments, utils, utils.import_utils):
        for name in ("is_torch_bf16_gpu_available", "is_torch_fp16_available_on_device"):
            if hasattr(module, name):
                setattr(module, name, lambda *_: True)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # a minute to build in a new environment


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


def parsed_by_axolotl(file: Path) -> list[Any]:
    """What its schema makes of the file on a card that computes in bfloat16, with the default of each key. It looks
    whether the package for Mistral's tokenizers is there, and nothing of it is asked for."""
    from importlib.machinery import ModuleSpec
    from importlib.util import module_from_spec

    import yaml
    from axolotl.integrations.base import PluginManager
    from axolotl.utils.config import prepare_plugins, validate_config
    from axolotl.utils.dict import DictDefault
    from axolotl.utils.schemas.config import AxolotlInputConfig

    values = DictDefault(yaml.safe_load(file.read_text(encoding="utf-8")))
    PluginManager._instance = None  # which has those of the file before
    sys.modules.setdefault("mistral_common", module_from_spec(ModuleSpec("mistral_common", None)))
    prepare_plugins(values)
    card = {"bf16": True, "fp8": False, "tf32": True, "n_gpu": GPUS, "compute_capability": "sm_80"}
    validated = validate_config(values, card, {"torch_version": "2.12.0"})
    defaults = {name: field.get_default() for name, field in AxolotlInputConfig.model_fields.items()}
    known = defaults.keys() - {f"dataloader_{name}" for name in ("num_workers", "pin_memory", "prefetch_factor")}
    own = {key: value for key, value in validated.items() if key in values or key in known}
    return [{key: (value, defaults.get(key)) for key, value in own.items()}]


PARSERS = {
    "axolotl": parsed_by_axolotl,
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
    values: dict[str, Any] = {}
    for group in parsed:
        for name, value, default in fields_of(group):
            if name in said or plain(value) != plain(default):
                values[name] = plain(value)
    return values


def fields_of(group: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, value and default of what users set: of a data class, or of a mapping of pairs."""
    import dataclasses

    if isinstance(group, Mapping):
        yield from ((name, value, default) for name, (value, default) in group.items())
        return
    for item in dataclasses.fields(group):
        if item.init:
            default = None if item.default is dataclasses.MISSING else item.default
            yield item.name, getattr(group, item.name), default


def meaning(
    trainer: str, values: Mapping[str, Any], folder: Path, model_of: Callable[[str], Any] | None = None
) -> tuple[Any, ...]:
    """What vlmplan's reader makes of keys and values."""
    from vlmplan.models import find_model
    from vlmplan.other_trainers.meaning import Surroundings
    from vlmplan.other_trainers.read import settings_of
    from vlmplan.other_trainers.readers import MODEL_KEYS, READERS

    _, read = READERS[IN_READER[trainer]]
    named = next((values[key] for key in MODEL_KEYS if values.get(key)), None)
    model = (model_of or find_model)(named) if named else None
    around = Surroundings(folder=folder, num_gpus=GPUS)
    config = read(settings_of(IN_READER[trainer], values, "train.yaml"), model, around)
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
    if trainer == "axolotl":
        num_others += parse_shipped(folder / "shipped") + parse_by_chance(folder / "chance.yml")
    return num_others


def parse_shipped(folder: Path) -> int:
    """Parse axolotl's own examples, and give both what stands in them and what the parser made of it to the reader; the
    number of those that it reads otherwise, or that it reads and the parser refuses."""
    from shipped import shipped, stand_in, write_all

    runs = [one for one in shipped() if one.trainer == "axolotl"]
    write_all(runs, folder)
    os.chdir(folder / "axolotl")
    found = Counter(_told_apart(Path(run.path), stand_in) for run in runs if run.is_run)
    print(f"axolotl's own examples: {dict(found)}")
    return found["other"]


def parse_by_chance(file: Path) -> int:
    """The same of files with keys by chance."""
    import yaml
    from axolotl_files import file_by_chance

    from vlmplan.models import find_model

    random, found = Random(0), Counter[str]()
    for _ in range(FILES_BY_CHANCE):
        values = file_by_chance(random, random.choice(("qwen2.5-0.5b", "qwen2.5-vl-3b")))
        file.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
        found[_told_apart(file, find_model)] += 1
    print(f"axolotl's files by chance: {dict(found)}")
    return found["other"] + (found["same"] < FILES_BY_CHANCE // 10)


def _told_apart(file: Path, model_of: Callable[[str], Any]) -> str:
    """Whether a file of axolotl's means the ``same`` as what its schema makes of it, or ``other``; ``not planned``."""
    from vlmplan.errors import InputError
    from vlmplan.files.yaml_reader import parse_yaml

    said = parse_yaml(file.read_text(encoding="utf-8"), source=str(file))[0]
    try:
        mine = meaning("axolotl", said, Path(), model_of)
    except InputError:
        return "not planned"
    try:
        its: Any = meaning("axolotl", as_file(parsed_by_axolotl(file), said), Path(), model_of)
    except ValueError as error:
        its = f"refused: {error}"
    if mine != its:
        print(f"OTHER axolotl {file} {said}\n  file   {mine}\n  parsed {its}")
    return "same" if mine == its else "other"


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]).resolve())
    else:
        sys.exit(min(1, parse(sys.argv[2], Path(sys.argv[3]).resolve())))

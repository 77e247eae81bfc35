"""The result: a folder that transformers (or peft) loads without anything of this trainer.

A model comes with all that its checkpoint had beside the weights, an adapter with the processor or tokenizer and the
name of the model that it belongs to.
"""

import copy
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from vlmplan.errors import UnavailableError
from vlmplan.files import READABLE
from vlmplan.files.json_reader import read_json_object
from vlmplan.plan import Plan
from vlmplan.run.training import ADAPTER_FOLDER, MERGED_FOLDER, MODEL_FOLDER
from vlmplan_trainer.engines import Engine
from vlmplan_trainer.models.adapters import converted_config, with_what_was_taken_out
from vlmplan_trainer.models.load import LoadedModel, Processing, load_base
from vlmplan_trainer.models.processor_files import GENERATION, copy_files, name_classes, say_speech

FSDP_WRAPPED = "_fsdp_wrapped_module"
"""What a wrapper of FSDP1 calls the module that it wraps."""
SAFETENSORS_WEIGHTS_NAME = "adapter_model.safetensors"
CARD = "README.md"
OF_PEFT = "base_model.model."
"""What peft puts before the names of the model in its own."""


def export(engine: Engine, loaded: LoadedModel, processing: Processing, output_dir: Path, *, is_adapter: bool) -> Path:
    """Write the trained model, or the adapter; every rank calls it."""
    weights = engine.weights()
    place = output_dir / (ADAPTER_FOLDER if is_adapter else MODEL_FOLDER)
    if engine.rank == 0 and weights is not None:
        with _unfinished(place) as folder:
            if is_adapter:
                with _exported_config(engine.model, loaded):
                    config: Any = next(iter(engine.model.peft_config.values()))  # pyright: ignore[reportCallIssue]
                    whole = with_what_was_taken_out(weights, loaded.taken_out, config.r)
                    _write_adapter(engine.model, processing, folder, whole)
                    _add_full_modules(folder, weights, loaded.full_modules)
            else:
                with _untrained_config(engine.model, loaded):
                    _write_model(engine.model, processing, folder, state_dict=weights)
    engine.barrier()
    return place


def copy_result(source: Path, place: Path) -> None:
    """Have in ``place`` what an earlier ``export`` has left in ``source``."""
    with _unfinished(place) as folder:
        shutil.copytree(source, folder, dirs_exist_ok=True)


def merge(plan: Plan, engine: Engine, processing: Processing, output_dir: Path) -> None:
    """``write_merged`` on rank 0; every rank calls it."""
    if engine.rank == 0:
        write_merged(plan, processing, output_dir)
    engine.barrier()


def write_merged(plan: Plan, processing: Processing, output_dir: Path) -> None:
    """Write the model with the exported adapter merged in.

    The model is loaded again in the recipe's 16 bits (32 in a float32 recipe), in host memory: what an engine has may
    be sharded, or rounded to 4 bits, and adapters are merged into the weights that they will be used with.
    """
    from peft import PeftModel

    base = load_base(plan)
    if plan.recipe.scores_rows:  # which finds the last token of a row by it
        base.config.pad_token_id = processing.processor.pad_token_id
    adapted = PeftModel.from_pretrained(base, str(output_dir / ADAPTER_FOLDER))
    with _unfinished(output_dir / MERGED_FOLDER) as folder:
        _write_model(adapted.merge_and_unload(), processing, folder)


@contextmanager
def _unfinished(place: Path) -> Iterator[Path]:
    """A folder that becomes ``place`` in the end: a killed run leaves no half model.

    Raises UnavailableError where it cannot be written. Its files are for those that the umask lets read them, also
    where safetensors makes them for their owner alone (0600, safetensors 0.8).
    """
    writing = place.with_name(place.name + ".unfinished")
    try:
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir(parents=True)
        yield writing
        mode = READABLE & ~_umask()
        for path in writing.rglob("*"):
            if path.is_file():
                path.chmod(mode)
        shutil.rmtree(place, ignore_errors=True)
        writing.rename(place)
    except (OSError, SafetensorError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
        raise UnavailableError(
            f"the result {place} cannot be written: {why}; the last checkpoint is whole, and --resume writes it again"
        ) from None


def _umask() -> int:
    """What the process takes from the modes of new files; it can only be read by setting it."""
    found = os.umask(0o077)
    os.umask(found)
    return found


def _write_adapter(model: Any, processing: Processing, folder: Path, weights: dict[str, Any]) -> None:
    for config in model.peft_config.values():  # random weights have no name of their own
        config.base_model_name_or_path, config.revision = processing.source.name, processing.source.revision
        for name, value in vars(config).items():
            if isinstance(value, set):  # peft writes one in an order that differs from process to process
                setattr(config, name, sorted(value))
    trained = [next(iter(model.peft_config))]  # TRL may keep a copy of them for its reference
    with without_wrappers(model):
        model.save_pretrained(folder, safe_serialization=True, state_dict=weights, selected_adapters=trained)
    if processing.source.folder is not None:
        _take_folder_out_of_card(folder / CARD)
    copy_files({name: path for name, path in processing.files.items() if name != GENERATION}, folder)
    say_speech(folder, processing.speech)
    name_classes(folder, processing.processor)


def _take_folder_out_of_card(path: Path) -> None:
    """Take the folder of the model out of what peft's model card says to programs. The Hub takes ids alone there, and
    refuses to be pushed a card that has anything else; adapter_config.json keeps it."""
    from huggingface_hub import ModelCard

    card = ModelCard.load(path)
    said: Any = card.data
    said.pop("base_model")
    said.tags = [tag for tag in said.tags or () if not tag.startswith("base_model:")]
    card.save(path)


@contextmanager
def without_wrappers(model: nn.Module) -> Iterator[None]:
    """FSDP1's wrappers out of the tree: peft 0.21 tells the weights of adapters by the names of their modules, which
    have the wrappers' names in them (``_get_tuner_state_dict_key_prefixes``)."""
    wrappers = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if FSDP_WRAPPED in dict(child.named_children())
    ]
    for parent, name, child in wrappers:
        parent.register_module(name, child.get_submodule(FSDP_WRAPPED))
    try:
        yield
    finally:
        for parent, name, child in wrappers:
            parent.register_module(name, child)


def _write_model(
    model: Any, processing: Processing, folder: Path, *, state_dict: dict[str, torch.Tensor] | None = None
) -> None:
    model.save_pretrained(folder, safe_serialization=True, state_dict=state_dict)
    _say_type(folder / "config.json", state_dict or model.state_dict())
    copy_files(processing.files, folder)
    say_speech(folder, processing.speech)


def _say_type(config_path: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """Have config.json name the type of the ``weights`` that were written, in which ``dtype="auto"`` loads them.
    transformers names that of the model's own (``save_pretrained`` 5.23), which under FSDP are shards in float32."""
    config = read_json_object(config_path)
    first = next(weight for weight in weights.values() if weight.is_floating_point())
    said = str(first.dtype).removeprefix("torch.")
    if config.get("dtype") != said:
        config_path.write_text(json.dumps(config | {"dtype": said}, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _add_full_modules(folder: Path, weights: Mapping[str, torch.Tensor], names: Sequence[str]) -> None:
    """Write the weights of modules that are trained in full into the adapter's file, as peft has those of its
    ``modules_to_save`` there."""
    if not names:
        return
    file = folder / SAFETENSORS_WEIGHTS_NAME
    tensors = load_file(file)
    prefixes = tuple(f"{OF_PEFT}{name}." for name in names)
    tensors |= {name: one.cpu().contiguous() for name, one in weights.items() if name.startswith(prefixes)}
    save_file(tensors, file, metadata={"format": "pt"})


@contextmanager
def _exported_config(model: Any, loaded: LoadedModel) -> Iterator[None]:
    """Inside, ``model`` has the settings of adapters that belong to the weights as they were before PiSSA or OLoRA, and
    says which modules are trained in full."""
    kept = dict(model.peft_config)
    if loaded.taken_out:
        model.peft_config.update({name: converted_config(config) for name, config in kept.items()})
    if loaded.full_modules:
        for name, config in model.peft_config.items():
            model.peft_config[name] = changed = copy.copy(config)
            changed.modules_to_save = [*(config.modules_to_save or ()), *loaded.full_modules]
    try:
        yield
    finally:
        model.peft_config.update(kept)


@contextmanager
def _untrained_config(model: Any, loaded: LoadedModel) -> Iterator[None]:
    """Inside, ``model`` has its checkpoint's settings: those of training are not exported."""
    of_training, model.config = model.config, copy.deepcopy(loaded.config)
    try:
        yield
    finally:
        model.config = of_training

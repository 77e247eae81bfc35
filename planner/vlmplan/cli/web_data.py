"""Samples that are dropped on the page: what options say of them, as ``--data`` finds it out, from a text in memory."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from vlmplan.cli.web_files import file_name
from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict, JsonObject, shown
from vlmplan.units import MIB, counted

if TYPE_CHECKING:
    from vlmplan.dataset import Dataset
    from vlmplan.workload import ModelFiles

MAX_DATA_BYTES = 3 * MIB
"""So that it goes into a question with a model's configuration beside it; larger files are for ``--data``."""


def summary(options: Mapping[str, Any], model_of: "Callable[[Mapping[str, Any]], ModelFiles]") -> JsonDict:
    """The options that say of a setup what its samples are like, and a sentence on them.

    ``options["data"]`` is ``{"name": ..., "text": ...}``; the model counts. Raises as ``--data`` does.
    """
    from vlmplan.data_plan.lengths import sample_shapes
    from vlmplan.data_rules import rules_of
    from vlmplan.dataset.media import media_reading, sample_counter
    from vlmplan.dataset.model_texts import model_texts
    from vlmplan.dataset.unseen import dataset_of_text
    from vlmplan.models import context_length
    from vlmplan.request import image_size
    from vlmplan.workload import DEFAULT_IMAGE_SIZE

    value = options.get("data")
    if not isinstance(value, Mapping):
        raise InputError(f"data is {shown(value)}; an object with what the file holds is needed")
    name = file_name("data", value)  # pyright: ignore[reportUnknownArgumentType]
    content = JsonObject(value, source="data").text("text").encode("utf-8", "replace")  # pyright: ignore[reportUnknownArgumentType]
    if len(content) > MAX_DATA_BYTES:
        raise InputError(f"{name} has more than {MAX_DATA_BYTES // MIB} MiB; vlmplan estimate --data takes any length")
    model = model_of(options)
    said = options.get("image_size")
    size = DEFAULT_IMAGE_SIZE if said is None else image_size(str(said))
    counter = sample_counter(model_texts(model), media_reading(model, rules_of(None)))
    dataset = dataset_of_text(name, content, counter, size)
    shapes = sample_shapes(dataset, model, rules_of(None)).shapes
    lengths = [shape.tokens for shape in shapes]
    limit = min(max(lengths), context_length(model) or max(lengths))
    shortest = min(limit, *lengths)
    found: JsonDict = {"num_samples": len(lengths), "seq_len": limit}
    found["images_per_sample"] = max(shape.num_images for shape in shapes)
    if found["images_per_sample"]:
        found["image_size"] = f"{size[0]}x{size[1]}"
    found["sample_lengths"] = f"{shortest}-{limit}" if shortest < limit else None
    return {"options": found, "sentences": _sentences(name, dataset, lengths, found)}


def _sentences(name: str, dataset: "Dataset", lengths: list[int], found: JsonDict) -> list[str]:
    most = found["images_per_sample"]
    images = f", with up to {counted(most, 'image')} each, taken to be {found['image_size']}" if most else ""
    mean = sum(lengths) / len(lengths)
    span = f"{min(lengths):,} to {max(lengths):,} tokens, {mean:,.0f} on average"
    sentences = [f"{name}: {counted(len(lengths), 'sample')} of {span}{images}", dataset.counting]
    if dataset.num_bad:
        sentences.append(f"{counted(dataset.num_bad, 'sample')} cannot be used; first: {dataset.sentences[0]}")
    return sentences

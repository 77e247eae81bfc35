"""What ``vlmplan models`` shows: each report holds the JSON document and the blocks made of the same numbers."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vlmplan.architecture.images import ImageShape
from vlmplan.architecture.model import Part
from vlmplan.files.json_reader import JsonDict
from vlmplan.models import packaged_models, why_unsupported
from vlmplan.models.facts import LORA_RANK, ModelAnatomy, ModelFacts
from vlmplan.render.lines import say
from vlmplan.render.tables import Table, print_table
from vlmplan.units import count_text, counted, size_text

if TYPE_CHECKING:
    from vlmplan.models.packaged import PackagedModel
    from vlmplan.workload import ModelFiles

SCHEMA = "vlmplan.models/1"
UNKNOWN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """One answer in both forms; a block is a table or a line."""

    document: JsonDict
    blocks: tuple[Table | str, ...]


def models_report(
    rows: Sequence[ModelFacts], unsupported: "Sequence[ModelFiles]", *, size: tuple[int, int]
) -> ModelReport:
    """One line per model, and apart those that cannot be planned."""
    blocks: list[Table | str] = [_models_table(rows)] if rows else []
    blocks.append(f"{counted(len(rows), 'model')}; image tokens are those of one image of {size_text(size)}")
    siblings = _siblings(rows)
    if siblings:
        found = "a word of their names, or --json, finds them"
        blocks.append(f"checkpoints built like one of these: {len(siblings)}; {found}")
    if unsupported:
        blocks.append(_unsupported_table(unsupported))
    document = {
        **_head(size),
        "models": [_facts_json(facts) for facts in rows],
        "siblings": [{"id": sibling.alias, "hub_id": sibling.hub_id, "model": sibling.folder} for sibling in siblings],
        "unsupported": [
            {"id": m.id, "hub_id": m.hub_id, "model_type": m.model_type, "reason": why_unsupported(m)}
            for m in unsupported
        ],
    }
    return ModelReport(document=document, blocks=tuple(blocks))


def _siblings(rows: Sequence[ModelFacts]) -> "list[PackagedModel]":
    """The packaged checkpoints with the files of a model in the list that are not in it themselves."""
    shown = {facts.model.id for facts in rows}
    return [model for model in packaged_models().values() if model.folder in shown and model.alias not in shown]


def _models_table(rows: Sequence[ModelFacts]) -> Table:
    titles = ("model", "family", "params", "vision", "projector", "language", "context", "image tokens", "Hugging Face")
    cells = [
        (
            facts.model.id,
            facts.model.model_type,
            count_text(facts.num_params),
            *(count_text(count) if (count := facts.num_params_by_part.get(part)) else UNKNOWN for part in Part),
            UNKNOWN if facts.context_length is None else f"{facts.context_length:,}",
            _tokens_cell(facts),
            facts.model.hub_id or UNKNOWN,
        )
        for facts in rows
    ]
    return Table(
        titles=titles,
        rows=cells,
        number_columns=frozenset(titles[2:-1]),
        least_first=("Hugging Face", "projector", "context", "vision", "language", "image tokens"),
        cut_columns=frozenset(("family", "Hugging Face")),
    )


def _unsupported_table(unsupported: "Sequence[ModelFiles]") -> Table:
    return Table(
        titles=("not supported", "model_type", "Hugging Face", "why"),
        rows=[(m.id, m.model_type, m.hub_id or UNKNOWN, why_unsupported(m)) for m in unsupported],
        least_first=("Hugging Face", "model_type"),
        cut_columns=frozenset(("Hugging Face", "why")),
    )


def model_report(facts: ModelFacts, anatomy: ModelAnatomy, *, source: str, size: tuple[int, int]) -> ModelReport:
    """One model: its parts, layers and Linears."""
    blocks: list[Table | str] = [
        "\n".join(_lines(facts, anatomy, source=source, size=size)),
        _parts_table(facts, anatomy),
        _linears_table(anatomy),
        "\n".join(_lora_lines(anatomy)),
    ]
    blocks += ["\n".join(f"note: {note}" for note in facts.model.notes)] if facts.model.notes else []
    document = {**_head(size), "model": _facts_json(facts) | {"source": source} | _anatomy_json(anatomy)}
    return ModelReport(document=document, blocks=tuple(blocks))


def print_report(report: ModelReport) -> None:
    """Print the blocks to standard output, apart from each other."""
    for index, block in enumerate(report.blocks):
        if index:
            click.echo()
        if isinstance(block, str):
            say(*block.splitlines())
        else:
            print_table(block)


def _head(size: tuple[int, int]) -> JsonDict:
    return {"schema": SCHEMA, "image_size": size_text(size)}


def _facts_json(facts: ModelFacts) -> JsonDict:
    model = facts.model
    return {
        "id": model.id,
        "hub_id": model.hub_id,
        "model_type": model.model_type,
        "num_params": facts.num_params,
        "num_params_by_part": {part.value: facts.num_params_by_part.get(part, 0) for part in Part},
        "context_length": facts.context_length,
        "takes_images": facts.takes_images,
        "image": None if facts.image is None else _image_json(facts.image),
        "notes": list(model.notes),
    }


def _image_json(image: ImageShape) -> dict[str, int]:
    return {
        "num_tokens": image.num_tokens,
        "num_vision_sequences": image.num_vision_sequences,
        "num_patches": image.num_patches,
        "num_cross_attention_states": image.num_cross_attention_states,
    }


def _anatomy_json(anatomy: ModelAnatomy) -> JsonDict:
    return {
        "ties_embeddings": anatomy.ties_embeddings,
        "stacks": [asdict(stack) | {"part": stack.part.value} for stack in anatomy.stacks],
        "linears": [asdict(linear) | {"part": linear.part.value} for linear in anatomy.linears],
        "lora": {
            "rank": LORA_RANK,
            "targets": {
                found.targets: {
                    "names": list(found.names),
                    "num_modules": found.num_modules,
                    "num_params": found.num_params,
                }
                for found in anatomy.lora
            },
        },
    }


def _tokens_cell(facts: ModelFacts) -> str:
    if facts.image is None:
        return "refused" if facts.takes_images else UNKNOWN
    states = facts.image.num_cross_attention_states
    return f"{facts.image.num_tokens:,}" + (f" + {states:,} seen across" if states else "")


def _lines(facts: ModelFacts, anatomy: ModelAnatomy, *, source: str, size: tuple[int, int]) -> list[str]:
    model = facts.model
    is_elsewhere = model.hub_id not in (None, model.id) and not Path(str(model.hub_id)).is_absolute()
    where = f" ({model.hub_id})" if is_elsewhere else ""
    lines = [
        f"{model.id}{where}: {count_text(facts.num_params)} parameters, model_type {model.model_type}",
        f"config.json: {source}",
    ]
    if facts.context_length is not None:
        lines.append(f"context: {facts.context_length:,} tokens")
    if facts.takes_images:
        lines.append(f"one image of {size_text(size)}: {_image_text(facts.image)}")
    tied = "one weight (tied)" if anatomy.ties_embeddings else "two weights"
    lines.append(f"token embedding and output head: {tied}")
    return lines


def _image_text(image: ImageShape | None) -> str:
    if image is None:
        return "refused by the model's image processor"
    tokens = counted(image.num_tokens, "token")
    text = f"{tokens}, {image.num_patches:,} patches"
    if image.num_vision_sequences > 1:
        text += f" in {image.num_vision_sequences} tiles"
    if image.num_cross_attention_states:
        text += f", {image.num_cross_attention_states:,} states seen through cross-attention"
    return text


def _parts_table(facts: ModelFacts, anatomy: ModelAnatomy) -> Table:
    rows = [
        (
            part.value,
            f"{count:,}",
            f"{count / facts.num_params:.1%}",
            ", ".join(f"{stack.num_layers} {stack.name}" for stack in anatomy.stacks if stack.part is part) or UNKNOWN,
        )
        for part in Part
        if (count := facts.num_params_by_part.get(part, 0))
    ]
    rows.append(("all", f"{facts.num_params:,}", "100.0%", ""))
    return Table(
        titles=("part", "parameters", "share", "layers"),
        rows=rows,
        number_columns=frozenset(("parameters", "share")),
        cut_columns=frozenset(("layers",)),
    )


def _linears_table(anatomy: ModelAnatomy) -> Table:
    rows = [
        (linear.name, linear.part.value, str(linear.count), str(linear.in_features), str(linear.out_features))
        for linear in anatomy.linears
    ]
    return Table(
        titles=("Linear", "part", "count", "in", "out"), rows=rows, number_columns=frozenset(("count", "in", "out"))
    )


def _lora_lines(anatomy: ModelAnatomy) -> list[str]:
    lines: list[str] = []
    for found in anatomy.lora:
        names = f" ({','.join(found.names)})" if found.names else ""
        lines.append(
            f"--lora-targets {found.targets}{names}: {found.num_modules} modules, "
            f"{found.num_params:,} parameters at rank {LORA_RANK}"
        )
    return lines

"""Tokens that a loss counts: as many in a plan of ``--data`` as labels in the trainer's micro batches."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from chat_files import jsonl, png
from tool_chats import CALLING, TEMPLATE
from vlmplan.chats.samples import Sample, read_chats
from vlmplan.dataset import dataset
from vlmplan.models import find_model
from vlmplan.recipe.choices import Batching
from vlmplan.sampler import Shares
from vlmplan_trainer.data.encode import Encoder, PlannedSamples
from vlmplan_trainer.data.flat_batches import BATCHES
from vlmplan_trainer.data.scan import scanned
from vlmplan_trainer.loop import label_tokens
from vlmplan_trainer.models.processors import load_processor

TAGGED = TEMPLATE.replace("<|{{ message.role }}|>{{", "<|{{ message.role }}|>{% if message.role == 'assistant' %}"
                          "{% generation %}{{", 1).replace("<|end|>", "<|end|>{% endgeneration %}{% else %}"
                          "{{ message.content }}<|end|>{% endif %}", 1)  # fmt: skip


def turn(said: str, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"<image>{said}" if said == "look" else said}, {"role": "assistant", **more}]


def rows(*, sees: bool) -> list[dict[str, Any]]:
    """Chats of which some turns are not learnt, with emoji, whose characters are several tokens."""
    first = "look" if sees else "x \U0001f600"
    chats: list[dict[str, Any]] = [
        {
            "messages": [
                *turn(first, content="One \U0001f600.", loss=False),
                *turn("y", content="\U0001f600 two \u00e9"),
            ]
        },
        {"messages": [*turn("a", content="Yes."), *turn(first, content="No!", weight=0), *turn("b", content="So.")]},
        {"messages": turn("only text", content="Alone.")},
    ]
    return [chat | ({"images": ["0.png"]} if sees and "<image>" in json.dumps(chat) else {}) for chat in chats]


def encoder_of(folder: Path, family: str, seq_len: int = 10_000) -> Encoder:
    processor = load_processor(str(folder), is_vision=family == "qwen2_vl")
    return Encoder(processor, PlannedSamples(seq_len=seq_len), model_type=family)


def learnt_in(samples: list[Sample], encoder: Encoder) -> int:
    return sum(int((encoder.encode(sample)["labels"][:, 1:] != -100).sum()) for sample in samples)


@pytest.mark.parametrize("template", [None, TEMPLATE, TAGGED], ids=["own", "without tags", "with tags"])
@pytest.mark.parametrize("family", ["llama", "qwen2_vl"])
def test_a_plan_counts_the_labels_of_micro_batches_however_they_are_laid_out(
    family: str, template: str | None, llama_folder: Path, qwen_folder: Path, tmp_path: Path
):
    sees = family == "qwen2_vl"
    if sees and template is not None:
        pytest.skip("the template writes texts")
    folder = shutil.copytree(qwen_folder if sees else llama_folder, tmp_path / "model")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    (tmp_path / "0.png").write_bytes(png(112, 84))
    more = [CALLING, CALLING | {"messages": [CALLING["messages"][0], CALLING["messages"][1] | {"train": False},
                                             *CALLING["messages"][2:]]}]  # fmt: skip
    path = jsonl(tmp_path, *rows(sees=sees), *(more if template is not None else []))
    samples, _ = read_chats(path, skips_bad=False)
    encoder = encoder_of(folder, family)
    planned, scan = dataset(path, find_model(str(folder))), scanned(encoder, samples)
    every = [sample.learnt_tokens for sample in planned.samples]
    assert every == [learnt_in([sample], encoder) for sample in samples]
    assert planned.learnt_tokens == scan.num_learnt == sum(every)
    for batching in Batching:
        encoder = encoder_of(folder, family, 400)
        batches = BATCHES[batching](samples, encoder, Shares(micro_batch=1, num_ranks=1, rank=0))
        assert sum(map(label_tokens, batches)) == sum(every)
        assert batches.scan.num_learnt == sum(every)


@pytest.mark.parametrize("family", ["llama", pytest.param("qwen2_vl", marks=pytest.mark.sweep)])
def test_of_a_chat_that_is_cut_what_is_left_is_counted(
    family: str, llama_folder: Path, qwen_folder: Path, tmp_path: Path
):
    folder, sees = (llama_folder, False) if family == "llama" else (qwen_folder, True)
    (tmp_path / "0.png").write_bytes(png(112, 84))
    samples, _ = read_chats(jsonl(tmp_path, *rows(sees=sees)[:1]), skips_bad=False)
    [length] = scanned(encoder_of(folder, family), samples).lengths
    counts = []
    for seq_len in range(length, 0, -1):
        encoder = encoder_of(folder, family, seq_len)
        scan = scanned(encoder, samples)
        if not scan.samples:
            break
        counts.append(scan.num_learnt)
        assert scan.num_learnt == learnt_in(samples, encoder)
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1] == 1


def test_a_chat_whose_turns_cannot_be_told_apart_is_counted_without_what_is_learnt(llama_folder: Path, tmp_path: Path):
    folder = shutil.copytree(llama_folder, tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    found = dataset(jsonl(tmp_path, *rows(sees=False)), find_model(str(folder)))
    assert (len(found.samples), found.learnt_tokens) == (3, None)

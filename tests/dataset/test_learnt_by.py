"""Tokens that other trainers learn, by what their files say: as many as labels that the trainers' own code makes.

``LABELS`` were counted in labels of trl 1.16 (``SFTTrainer.train_dataset``), LLaMA-Factory 0.9.5
(``SupervisedDatasetProcessor._encode_data_example``, template chatml), ms-swift 4.6 (``Template.encode``, template
chatml) and axolotl 0.19 (``ChatTemplateStrategy.tokenize_prompt``), with the tokenizer, the template and the chats of
this test; the first label, which nothing predicts, is left out.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chat_files import jsonl
from vlmplan.data_rules import Learnt, LearntRule, rules_of
from vlmplan.dataset import dataset
from vlmplan.dataset.media import media_reading
from vlmplan.models import find_model
from vlmplan.other_trainers.meaning import Surroundings
from vlmplan.other_trainers.read import settings_of
from vlmplan.other_trainers.readers import READERS

pytest.importorskip("transformers")
from transformers import AutoTokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

TAGGED = CHATML.replace(
    "{{ m.content }}<|im_end|>\n",
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}\n",
)


def said(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


CHATS: list[dict[str, Any]] = [
    {
        "messages": said(
            *(("system", "Be brief."), ("user", "hi there"), ("assistant", "hello")),
            *(("user", "and again?"), ("assistant", "yes, again")),
        )
    },
    {"messages": said(("user", "x"), ("assistant", "A cat."))},
]
COMPLETION: dict[str, Any] = {"prompt": said(("user", "Why?")), "completion": said(("assistant", "So it is."))}
TOKENS = [58, 17]
LABELS: dict[str, list[tuple[dict[str, Any], list[int]]]] = {
    "trl": [({}, [57, 16]), ({"completion_only_loss": True}, [57, 16]), ({"completion_only_loss": "false"}, [57, 16])],
    "llamafactory": [({}, [15, 6]), ({"train_on_prompt": True}, [57, 16]), ({"mask_history": True}, [10, 6])],
    "swift": [({}, [15, 6]), ({"loss_scale": "last_round"}, [10, 6]), ({"loss_scale": "all"}, [57, 16])],
    "axolotl": [({}, [13, 5]), ({"train_on_inputs": True}, [34, 7])],
}
COMPLETION_LABELS = [({}, 7), ({"completion_only_loss": True}, 7), ({"completion_only_loss": False}, 19)]
NEEDED: dict[str, dict[str, Any]] = {
    "llamafactory": {"bf16": True},
    "axolotl": {"micro_batch_size": 1, "batch_size": 1, "attn_implementation": "flash_attention_2"},
}
CASES = [(trainer, said, labels) for trainer, cases in LABELS.items() for said, labels in cases]


@pytest.fixture(scope="module")
def model(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Llama whose template is ChatML."""
    folder = tmp_path_factory.mktemp("models") / "chatml"
    tokenizer = AutoTokenizer.from_pretrained(str(llama_folder))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"], "eos_token": "<|im_end|>"})
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(str(folder))
    (folder / "config.json").write_bytes((llama_folder / "config.json").read_bytes())
    return str(folder)


def learnt_rule(trainer: str, values: dict[str, Any]) -> LearntRule:
    _, read = READERS[trainer]
    settings = settings_of(trainer, NEEDED.get(trainer, {}) | values, "the file")
    return read(settings, None, Surroundings(folder=None, num_gpus=1)).data_rules.learns


def learnt(model: str, path: Path, rule: LearntRule) -> list[tuple[int, int | None]]:
    files = find_model(model)

    media = media_reading(files, replace(rules_of("trl"), learns=rule))
    return [(sample.text_tokens, sample.learnt_tokens) for sample in dataset(path, files, media=media).samples]


@pytest.mark.parametrize(("trainer", "values", "labels"), CASES, ids=str)
def test_as_many_tokens_are_learnt_as_the_trainer_makes_labels(
    trainer: str, values: dict[str, Any], labels: list[int], model: str, tmp_path: Path
):
    rule = learnt_rule(trainer, values)
    assert learnt(model, jsonl(tmp_path, *CHATS), rule) == list(zip(TOKENS, labels, strict=True))


@pytest.mark.parametrize(("values", "labels"), COMPLETION_LABELS, ids=str)
def test_of_a_completion_as_many_tokens_are_learnt_as_trl_makes_labels(
    values: dict[str, Any], labels: int, model: str, tmp_path: Path
):
    assert learnt(model, jsonl(tmp_path, COMPLETION), learnt_rule("trl", values)) == [(20, labels)]


def test_of_a_template_with_tags_as_much_is_learnt_as_stands_between_them(model: str, tmp_path: Path):
    folder = shutil.copytree(model, tmp_path / "tagged")
    (folder / "chat_template.jinja").write_text(TAGGED)
    rule = learnt_rule("trl", {"assistant_only_loss": True})
    assert [count for _, count in learnt(str(folder), jsonl(tmp_path, *CHATS), rule)] == [13, 5]


def test_where_a_file_leaves_open_what_is_learnt_nothing_is_said(model: str, tmp_path: Path):
    path = jsonl(tmp_path, *CHATS)
    for trainer, values in (
        ("trl", {"assistant_only_loss": True}),
        ("swift", {"loss_scale": "hermes"}),
        ("axolotl", {"datasets": [{"path": "x", "type": "alpaca"}]}),
        ("axolotl", {"datasets": [{"path": "x", "type": "chat_template", "train_on_eos": "all"}]}),
    ):
        assert {count for _, count in learnt(model, path, learnt_rule(trainer, values))} == {None}
    assert rules_of("transformers").learns.what is Learnt.UNKNOWN

"""Real runs on chats of which some turns are not learnt: the loss is that of the others, computed by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_runs import assert_goes_on_alike, planned, train_here

from chat_files import jsonl, png
from vlmplan_trainer.models.processors import load_processor
from vlmplan_trainer.models.tiny import write_tiny_model

ENDS = {"llama": "<|eot_id|>", "qwen2_vl": "<|im_end|>"}
LEARNT = (("Red it is.",), ("Two.", "Nine."), ("So.",))
"""Of each chat, what is learnt."""


def chats(folder: Path, *, sees: bool) -> Path:
    def user(said: str) -> dict[str, Any]:
        return {"role": "user", "content": said}

    def answer(said: str, **more: Any) -> dict[str, Any]:
        return {"role": "assistant", "content": said, **more}

    if sees:
        (folder / "0.png").write_bytes(png(56, 56))
    shown = {"images": ["0.png"]} if sees else {}
    first = "<image>Which?" if sees else "Which?"
    return jsonl(
        folder,
        {"messages": [user(first), answer("Wrong.", weight=0), user("No."), answer("Red it is.")], **shown},
        {
            "messages": [
                user("One?"),
                answer("Two."),
                user("No?"),
                answer("Bad.", loss=False),
                user("?"),
                answer("Nine."),
            ]
        },
        {"messages": [user("And?"), answer("Hm.", train=False), user("?"), answer("So.")]},
    )


def loss_by_hand(folder: Path, family: str, data: Path) -> tuple[float, int]:
    """The mean of what each learnt token costs, and their number, of one text after the other."""
    import json

    from PIL import Image
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    sees = family == "qwen2_vl"
    processor = load_processor(str(folder), is_vision=sees)
    tokenizer: Any = processor.tokenizer if sees else processor
    auto = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32).eval()
    total, number = 0.0, 0
    for line, learnt in zip(data.read_text().splitlines(), LEARNT, strict=True):
        messages = json.loads(line)["messages"]
        if sees:
            for one in messages:
                text = {"type": "text", "text": one["content"].removeprefix("<image>")}
                one["content"] = [{"type": "image"}, text] if "<image>" in one["content"] else [text]
        text = processor.apply_chat_template(messages, tokenize=False)
        images = [Image.open(data.parent / "0.png")] if "image_pad" in text else None
        inputs = dict(processor(text=[text], images=images, return_tensors="pt") if sees else
                      tokenizer([text], add_special_tokens=False, return_tensors="pt"))  # fmt: skip
        with torch.no_grad():
            scores = model(**inputs).logits[0].log_softmax(-1)
        [ids] = inputs["input_ids"]
        for said in learnt:
            wanted = tokenizer(said + ENDS[family], add_special_tokens=False)["input_ids"]
            [start] = [at for at in range(len(ids)) if ids[at : at + len(wanted)].tolist() == wanted]
            total -= sum(float(scores[start + place - 1, token]) for place, token in enumerate(wanted))
            number += len(wanted)
    return total / number, number


@pytest.mark.parametrize(
    ("family", "batching"),
    [
        ("llama", "padded"),
        pytest.param("llama", "packed", marks=pytest.mark.sweep),
        pytest.param("qwen2_vl", "padded", marks=pytest.mark.sweep),
        pytest.param("qwen2_vl", "padding-free", marks=pytest.mark.sweep),
    ],
)
def test_the_loss_is_that_of_learnt_turns_and_the_run_goes_on_alike(family: str, batching: str, tmp_path: Path):
    model = write_tiny_model(tmp_path / family, family)
    data = chats(tmp_path, sees=family == "qwen2_vl")
    packs = batching == "packed"
    plan = planned(
        model, num_ranks=1, zero_stage="none", method="full", precision="fp32", micro_batch=1, loss="chunked",
        global_batch=1 if packs else 3, batching=batching, epochs=3, seq_len=256 if packs else 128,
    )  # fmt: skip
    words = ("--train-data", str(data), "--learning-rate", "1e-2", "--save-every", "1")
    whole = train_here(plan, tmp_path / "whole", *words)
    assert whole.code == 0, whole.err
    expected, number = loss_by_hand(model, family, data)
    assert whole.metrics[0]["loss"] == pytest.approx(expected, rel=1e-5)
    assert {line["num_label_tokens"] for line in whole.metrics} == {number}
    assert f"; {number} of all " in whole.out
    assert whole.losses[-1] < whole.losses[0]
    assert_goes_on_alike(plan, whole, tmp_path / "on", *words)

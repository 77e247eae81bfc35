"""Samples with images as the trainer gives them to models of many families, beside what the processor says of them."""

from pathlib import Path

import pytest
import torch
from published_folders import FAMILIES, write_published
from test_batches_of_families import loss_sum

from chat_files import jsonl, png, text
from vlmplan.chats.samples import read_chats
from vlmplan.errors import InputError
from vlmplan_trainer.data.batches import collated
from vlmplan_trainer.data.encode import PlannedSamples
from vlmplan_trainer.data.flat_rows import for_the_model
from vlmplan_trainer.data.read import encoder_class
from vlmplan_trainer.data.scan import scanned
from vlmplan_trainer.models.processors import load_processor

ALWAYS = ("ovis2", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker", "llava_onevision", "paligemma", "instructblip")
ONE_IMAGE = ("blip-2", "instructblip")
TRAINED = [family for family in FAMILIES if family != "pixtral"]  # not as its own
CASES = [pytest.param(family, marks=() if family in ALWAYS else pytest.mark.sweep) for family in TRAINED]
SIZES = {"a.png": (60, 50), "b.png": (30, 90)}


def question(*names: str, answer: str) -> dict[str, object]:
    images = [{"type": "image", "path": name} for name in names]
    turns = [
        {"role": "user", "content": [*images, text("What is it?")]},
        {"role": "assistant", "content": [text(answer)]},
    ]
    return {"messages": turns}


@pytest.mark.parametrize("family", CASES)
def test_without_the_mask_of_the_padding_a_model_gives_the_loss_that_it_gives_with_it(family: str, tmp_path: Path):
    """Of causal models the trainer leaves the mask out: what they make of it beside attention has to be given."""
    from transformers import AutoModelForImageTextToText

    folder = write_published(tmp_path / family, family)
    try:
        processor = load_processor(str(folder), is_vision=True)
    except ImportError as error:
        pytest.skip(" ".join(str(error).split())[:80])
    for name, size in SIZES.items():
        (tmp_path / name).write_bytes(png(*size))
    both = ["b.png"] if family in ONE_IMAGE else ["b.png", "a.png"]
    data = jsonl(
        tmp_path,
        question("a.png", answer="A cat."),
        question("b.png", answer="Two words of it."),
        question(*both, answer="Both."),
    )
    samples = read_chats(data, skips_bad=False)[0]
    made = encoder_class(family)(processor, PlannedSamples(seq_len=100_000), model_type=family)
    rows = [made.encode(sample) for sample in samples]
    assert scanned(made, samples).lengths == [row["input_ids"].shape[1] for row in rows]
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        masked = [float(model(**row).loss) * int((row["labels"][:, 1:] >= 0).sum()) for row in rows]
        alone = [loss_sum(model, for_the_model(model, row)) for row in rows]
        batch = collated(made.alongside(rows), pad_id=made.pad_id, pads_to=16, seq_len=100_000)
        together = loss_sum(model, for_the_model(model, batch))
    assert alone == pytest.approx(masked, rel=1e-4)
    assert together == pytest.approx(sum(masked), rel=1e-4)


def test_a_text_without_an_image_is_bad_where_the_processor_needs_one(tmp_path: Path):
    processor = load_processor(str(write_published(tmp_path / "paligemma", "paligemma")), is_vision=True)
    made = encoder_class("paligemma")(processor, PlannedSamples(seq_len=100_000), model_type="paligemma")
    (tmp_path / "a.png").write_bytes(png(*SIZES["a.png"]))
    data = jsonl(tmp_path, question("a.png", answer="A cat."), question(answer="Nothing."))
    with pytest.raises(InputError, match=r":2: the sample shows no image, and the model's processor needs one "):
        scanned(made, read_chats(data, skips_bad=False)[0])

"""Real models of other families, made tiny: the loss of a batch of images and texts is that of its samples alone."""

from typing import Any

import pytest
import torch
from chat_cases import question
from other_processors import FAMILIES

from vlmplan_trainer.data.batches import collated, with_blank
from vlmplan_trainer.data.encode import IGNORED_LABEL, Encoder, PlannedSamples
from vlmplan_trainer.losses.loss import model_inputs
from vlmplan_trainer.models.processors import load_processor
from vlmplan_trainer.models.tiny import write_tiny_model

TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 640, "pad_token_id": 0,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip


def settings(family: str, image_token_id: int) -> dict[str, Any]:
    llama, clip = {"model_type": "llama", **TEXT}, {"model_type": "clip_vision_model", **VISION}
    if family == "gemma3":
        text = {"model_type": "gemma3_text", **TEXT}
        vision = {"model_type": "siglip_vision_model", **VISION}
        return {
            "text_config": text,
            "vision_config": vision,
            "mm_tokens_per_image": 4,
            "image_token_index": image_token_id,
        }
    if family == "idefics3":
        return {"text_config": llama, "vision_config": VISION, "scale_factor": 1, "image_token_id": image_token_id}
    if family == "internvl":
        vision = {**VISION, "image_size": [28, 28], "patch_size": [14, 14]}
        more = {"downsample_ratio": 1.0, "image_seq_length": 4, "image_token_id": image_token_id}
        return {"text_config": llama, "vision_config": vision, **more}
    more = {"image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]]} if family == "llava_next" else {}
    return {"text_config": llama, "vision_config": clip, "image_token_index": image_token_id, **more}


def tiny_model(family: str, image_token_id: int) -> Any:
    from transformers import AutoModelForImageTextToText
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](**settings(family, image_token_id))
    return AutoModelForImageTextToText.from_config(config, dtype=torch.float32).train()


def loss_sum(model: Any, batch: dict[str, torch.Tensor]) -> float:
    logits = model(**model_inputs(batch)).logits
    return float(torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    ))  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_gives_the_losses_of_its_samples(family: str):
    processor = FAMILIES[family]()
    name = getattr(processor.tokenizer, "image_token", None) or processor.image_token
    model = tiny_model(family, processor.tokenizer.convert_tokens_to_ids(name))
    made = Encoder(processor, PlannedSamples(seq_len=256), model_type=family)
    sizes = [((56, 56),), (), ((28, 90),), ((90, 28), (20, 20))]
    rows = [made.encode(question(answer="A cat. " * number, sizes=size)) for number, size in enumerate(sizes, start=1)]
    batch = collated(rows, pad_id=made.pad_id, pads_to=16, seq_len=256)
    assert batch["input_ids"].max() < TEXT["vocab_size"]
    with torch.no_grad():
        alone = [loss_sum(model, row) for row in rows]
        assert loss_sum(model, batch) == pytest.approx(sum(alone), rel=1e-4)
        assert loss_sum(model, with_blank(rows[1], made, made.blank_image)) == pytest.approx(alone[1], rel=1e-4)


def test_a_batch_of_qwen2_vl_gives_the_losses_of_its_samples(tmp_path):
    """Its positions follow the images, so that padding must not count among them."""
    from transformers import AutoModelForImageTextToText

    folder = write_tiny_model(tmp_path, "qwen2_vl")
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).train()
    made = Encoder(load_processor(str(folder), is_vision=True), PlannedSamples(seq_len=256), model_type="qwen2_vl")
    sizes = [((56, 56),), ((28, 112),), ((112, 28), (56, 56))]
    rows = [made.encode(question(answer="A cat. " * number, sizes=size)) for number, size in enumerate(sizes, start=1)]
    with torch.no_grad():
        alone = [loss_sum(model, row) for row in rows]
        together = loss_sum(model, collated(rows, pad_id=made.pad_id, pads_to=16, seq_len=256))
    assert together == pytest.approx(sum(alone), rel=1e-4)

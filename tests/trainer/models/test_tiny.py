"""Tiny models: what ``from_pretrained`` loads offline, and a template that shows where turns begin and end."""

import pytest
import torch
from PIL import Image

from vlmplan_trainer.models.processors import load_processor
from vlmplan_trainer.models.tiny import FAMILIES, MAX_LEARNED_TOKENS, write_tiny_model

CHAT = [{"role": "user", "content": "Which colour? ¿Écoute, 日本?"}, {"role": "assistant", "content": "Red."}]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp(request.param), request.param)


def real_model(folder):
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    is_vision = (folder / "preprocessor_config.json").exists()
    return (AutoModelForImageTextToText if is_vision else AutoModelForCausalLM).from_pretrained(folder)


def tokenizer_of(folder):
    return load_processor(str(folder), is_vision=False)


def test_equal_arguments_write_equal_files(tmp_path):
    first, second, other = (
        {path.name: path.read_bytes() for path in write_tiny_model(tmp_path / name, "llama", seed=seed).iterdir()}
        for name, seed in (("a", 7), ("b", 7), ("c", 11))
    )
    assert first == second
    assert {name for name in first if first[name] != other[name]} == {"model.safetensors"}


def test_making_weights_leaves_torchs_generator_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    write_tiny_model(tmp_path, "llama")
    assert torch.equal(torch.rand(3), expected)


def test_any_text_survives_the_tokenizer(folder):
    tokenizer = tokenizer_of(folder)
    text = CHAT[0]["content"]
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer) <= MAX_LEARNED_TOKENS


def test_the_template_marks_turns_with_tokens_of_their_own(folder):
    tokenizer = tokenizer_of(folder)
    ids = tokenizer.apply_chat_template(CHAT, return_dict=True)["input_ids"]
    assert ids.count(tokenizer.eos_token_id) >= len(CHAT)
    text = tokenizer.decode(ids)
    assert text == tokenizer.apply_chat_template(CHAT, tokenize=False)
    assert all(turn["content"] in text for turn in CHAT)


def test_special_tokens_of_the_configuration_are_the_tokenizers(folder):
    config, tokenizer = real_model(folder).config, tokenizer_of(folder)
    text = config.get_text_config()
    assert text.eos_token_id == tokenizer.eos_token_id
    if config.model_type == "qwen2_vl":
        assert config.image_token_id == tokenizer.convert_tokens_to_ids("<|image_pad|>")
        assert config.vision_start_token_id == tokenizer.convert_tokens_to_ids("<|vision_start|>")
    else:
        assert (text.bos_token_id, text.pad_token_id) == (tokenizer.bos_token_id, tokenizer.pad_token_id)


def test_an_image_becomes_a_token_for_every_four_patches(tmp_path):
    folder = write_tiny_model(tmp_path, "qwen2_vl")
    processor = load_processor(str(folder), is_vision=True)
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which colour?"}]}]
    text = processor.apply_chat_template(chat, tokenize=False)
    batch = processor(text=[text], images=[Image.new("RGB", (5 * 28, 3 * 28))], return_tensors="pt")
    assert int((batch["input_ids"] == processor.image_token_id).sum()) == 5 * 3
    assert batch["pixel_values"].shape == (4 * 5 * 3, 3 * 2 * 14 * 14)
    logits = real_model(folder)(**batch).logits
    assert logits.isfinite().all()
    other = processor(text=[text], images=[Image.new("RGB", (5 * 28, 3 * 28), "red")], return_tensors="pt")
    assert not torch.equal(real_model(folder)(**other).logits, logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_are_those_that_were_asked_for(tmp_path, family):
    folder = write_tiny_model(tmp_path, family, hidden_size=96, num_layers=3, vocab_size=777, ties_weights=False)
    model = real_model(folder)
    text = model.config.get_text_config()
    assert (text.hidden_size, text.num_hidden_layers, text.vocab_size) == (96, 3, 777)
    assert model.get_output_embeddings().weight is not model.get_input_embeddings().weight

"""Models whose class names no output head, though the language model that they hold has one."""

import torch
from transformers import Blip2Config, Blip2ForConditionalGeneration, BlipConfig, BlipForConditionalGeneration

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan_trainer.models.adapters import add_adapters
from vlmplan_trainer.models.parts import Parts
from vlmplan_trainer.probe import layout, name_head

WIDTHS = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
TEXT = {**WIDTHS, "vocab_size": 64, "encoder_hidden_size": 32, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 3}
BLIP = {"text_config": TEXT, "vision_config": {**WIDTHS, "image_size": 32, "patch_size": 16}}
OMNI = {
    "model_type": "nemotron_h_omni",
    "text_config": {
        "model_type": "nemotron_h",
        "hidden_size": 32,
        "vocab_size": 64,
        "num_hidden_layers": 2,
        "hybrid_override_pattern": "M*",
    },
}

OPT = {
    "model_type": "opt",
    **WIDTHS,
    "ffn_dim": 48,
    "word_embed_proj_dim": 32,
    "vocab_size": 64,
    "max_position_embeddings": 32,
}
BLIP_2 = {
    "text_config": OPT,
    "qformer_config": {**WIDTHS, "encoder_hidden_size": 32},
    "vision_config": {**WIDTHS, "image_size": 32, "patch_size": 16},
    "num_query_tokens": 4,
}


def blip():
    return BlipForConditionalGeneration(BlipConfig(**BLIP))


def test_the_head_is_that_of_the_language_model_inside():
    model = blip()
    assert model.get_output_embeddings() is None
    assert name_head(model).get_output_embeddings() is model.text_decoder.cls.predictions.decoder
    assert layout({"model_type": "blip", **BLIP})["head"] == "text_decoder.cls.predictions.decoder"
    assert layout(OMNI)["head"] == "language_model.lm_head"


def test_adapters_hand_no_embeddings_to_a_forward_that_takes_none():
    model = name_head(blip())
    recipe = Recipe(method=Method.LORA, lora_rank=2)
    adapted = add_adapters(model, Parts(model), recipe)
    ids = torch.arange(2 * 5).reshape(2, 5) + 4
    adapted(input_ids=ids, pixel_values=torch.zeros(2, 3, 32, 32)).logits.sum().backward()
    assert any(parameter.grad is not None for name, parameter in adapted.named_parameters() if "lora_B" in name)


def test_the_copies_of_a_head_and_an_embedding_that_share_a_weight_share_one():
    """peft 0.21 leaves them two where the language model inside ties them and the whole model's class does not say."""
    model = Blip2ForConditionalGeneration(Blip2Config(**BLIP_2))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    adapted = add_adapters(model, Parts(model), Recipe(method=Method.LORA, lora_rank=2, train_embeddings=True))
    embedding, head = adapted.get_input_embeddings(), adapted.get_output_embeddings()
    assert head.modules_to_save["default"].weight is embedding.modules_to_save["default"].weight
    assert embedding.modules_to_save["default"].weight is not embedding.original_module.weight

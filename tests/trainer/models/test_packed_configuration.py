"""What transformers reads of a model whose weights were packed without a file."""

import pytest
import torch

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan_trainer.models.adapters import quantize
from vlmplan_trainer.models.packing import packing


@pytest.mark.parametrize("method", [Method.QLORA, Method.LORA_8BIT])
def test_flash_attention_of_float32_takes_the_type_of_the_configuration_not_that_of_packed_weights(method: Method):
    """As behind ``from_pretrained``: else it ran on integers, through which no gradient comes back."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("bitsandbytes")
    from transformers.integrations.flash_attention import get_target_dtype

    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2, vocab_size=32
    )
    model = transformers.LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    quantize(model, packing(Recipe(method=method)), torch.device("cpu"))
    attention = model.model.layers[0].self_attn
    assert not attention.q_proj.weight.dtype.is_floating_point
    assert get_target_dtype(torch.ones(1), attention) is torch.bfloat16

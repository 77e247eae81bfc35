"""Models that score rows, beside transformers' own ``...ForSequenceClassification`` with one label."""

from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as CLASSES

from family_checks import text_inputs
from tape_probe import predicted_step
from torch_probe import measured_step
from vlmplan.architecture.families import FAMILIES
from vlmplan.architecture.families.text import TEXT_FAMILIES
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import prepared_model
from vlmplan.model_types.encoder_decoder import ENCODER_DECODER_TYPES
from vlmplan.model_types.reward_models import OF_IMAGES_TOO, OTHER_HEADS, SCORED_TYPES, no_score
from vlmplan.models import find_model
from vlmplan.models.tree import model_tree
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import TaskKind
from vlmplan.units import DType

REWARD = Recipe(task=TrainingTask(kind=TaskKind.REWARD), loss=LossKind.BRADLEY_TERRY)
ROTATED = {"rope_type": "default", "rope_theta": 10_000.0}
NEEDED = {
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROTATED, "sliding_attention": ROTATED}},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "hunyuan_v1_dense": {"head_dim": 64},
    "hunyuan_v1_moe": {"head_dim": 64},
    "ministral": {"head_dim": 64},
    "nemotron": {"num_key_value_heads": 8},
}
"""What the default configuration of a type lacks that its model asks for."""
OFTEN = ("falcon", "gpt2", "opt", "qwen3")


@pytest.mark.parametrize(
    "model_type",
    [name if name in OFTEN else pytest.param(name, marks=pytest.mark.sweep) for name in sorted(SCORED_TYPES)],
)
def test_parameters_are_those_of_the_class_that_scores(model_type: str):
    config = AutoConfig.for_model(model_type, num_labels=1, **NEEDED.get(model_type, {}))
    with torch.device("meta"):
        theirs = AutoModelForSequenceClassification.from_config(config)
    ours = prepared_model(config.to_dict(), REWARD)
    found = [(one.name, one.parameter.numel) for one in ours.parameters()]
    assert found == [(name, one.numel()) for name, one in theirs.named_parameters()]
    assert found[-1][0] == "score.weight"


def test_every_type_of_transformers_that_scores_is_planned_or_refused_by_its_name():
    known = {name for name in FAMILIES if name in CLASSES}
    assert known - ENCODER_DECODER_TYPES == SCORED_TYPES | OTHER_HEADS | OF_IMAGES_TOO
    for name in TEXT_FAMILIES.keys() - CLASSES.keys():
        assert f"has no class of {name} that scores rows" in str(no_score(name))


@pytest.mark.parametrize("method", [Method.LORA, Method.QLORA])
def test_adapters_leave_the_head_to_a_copy_that_is_trained(method: Method):
    files = find_model("qwen3-0.6b")
    model = prepared_model(model_tree(files), REWARD.with_changes(method=method))
    *_, original, copy = model.parameters()
    assert (original.name, copy.name) == ("score.original_module.weight", "score.modules_to_save.weight")
    assert (original.parameter.requires_grad, copy.parameter.requires_grad) == (False, True)
    assert original.parameter.stored_bytes is None
    assert not any("lm_head" in one.name or "score.lora" in one.name for one in model.parameters())


class RewardTrainer(nn.Module):
    """``compute_loss`` of TRL 1.16 ``trainer/reward_trainer.py``; ``is_wide``: accelerate makes the outputs float32."""

    def __init__(self, config: dict[str, Any], *, is_wide: bool) -> None:
        super().__init__()
        made = AutoConfig.for_model(**config, num_labels=1, pad_token_id=0, use_cache=False)
        dtype = torch.float32 if is_wide else torch.bfloat16
        self.model = AutoModelForSequenceClassification.from_config(made, dtype=dtype, attn_implementation="sdpa")
        self.is_wide = is_wide

    def forward(self, **inputs):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.is_wide, cache_enabled=False):
            scores = self.model(**inputs, use_cache=False).logits
        chosen, rejected = torch.chunk((scores.float() if self.is_wide else scores).squeeze(-1), chunks=2)
        return CausalLMOutput(loss=-F.logsigmoid(chosen - rejected).mean())


SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 5003}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2": {"model_type": "qwen2", **SIZES, "num_attention_heads": 4, "num_key_value_heads": 2},
    "opt": {
        "model_type": "opt",
        "hidden_size": 512,
        "ffn_dim": 1024,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 5003,
        "word_embed_proj_dim": 512,
    },
    "falcon": {"model_type": "falcon", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8},
}
"""Wide where a type has layer norms: of bfloat16 the CPU's keep their two numbers of a row in 2 bytes, CUDA's in 4."""


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_keeps_and_peaks_as_trls(name: str, is_wide: bool):
    config, batch = CONFIGS[name], Batch(micro_batch=2 * 3, num_tokens=110)
    inputs = {name: values for name, values in text_inputs(batch).items() if name != "labels"}  # scores have none
    measured = measured_step(lambda: RewardTrainer(config, is_wide=is_wide), inputs)
    tree = prepared_model(AutoConfig.for_model(**config).to_dict(), REWARD)
    for one in tree.parameters():
        one.parameter.dtype = DType.FLOAT32 if is_wide else DType.BFLOAT16
    autocast = DType.BFLOAT16 if is_wide else None
    found = predicted_step(tree, batch, loss=LossKind.BRADLEY_TERRY, makes_loss_inside=False, autocast=autocast)
    for part in ("forward_live", "forward_peak", "backward_peak"):
        assert getattr(found, part) == pytest.approx(getattr(measured, part), rel=0.003), part

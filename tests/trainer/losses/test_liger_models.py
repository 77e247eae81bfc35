"""Liger's loss of models that Liger has no patch with one for: its function is handed their hidden states and head."""

import pytest
from loss_models import batch, distance_fraction, gradients, small_model

from vlmplan.model_types.liger import CUT_LOSS_TYPES, FUSED_LOSS_TYPES
from vlmplan.recipe.choices import LossKind
from vlmplan_trainer.losses.loss import language_loss

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
KINDS = {
    **{kind: {} for kind in ("apertus", "arcee", "glm", "ministral3", "olmo", "seed_oss")},
    "glm4_moe": {"n_routed_experts": 4, **EXPERTS},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "olmoe": {"num_experts": 4, **EXPERTS},
    "phi": {"num_key_value_heads": 4},  # whose head has a bias
    "qwen2_moe": {"num_experts": 4, "shared_expert_intermediate_size": 16, **EXPERTS},
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_that_of_all_logits(kind):
    assert kind in CUT_LOSS_TYPES - FUSED_LOSS_TYPES
    model = small_model(kind, **KINDS[kind]).eval()
    found, expected = (language_loss(model, batch(), kind=one) for one in (LossKind.LIGER, LossKind.FULL))
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    assert distance_fraction(gradients(model, found), gradients(model, expected)) < 2e-6

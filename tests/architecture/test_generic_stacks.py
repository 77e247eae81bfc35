"""What traced encoders and decoders multiply, beside what torch counts of transformers' own steps."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from encoder_decoder_folders import small_model  # noqa: E402
from tape_probe import predicted_step  # noqa: E402
from vlmplan.architecture.generic.stacks import LocalAttention, local_attention, stack_facts  # noqa: E402
from vlmplan.architecture.model import Batch  # noqa: E402
from vlmplan.model_types.encoder_decoder import OWN_LOSS_TYPES  # noqa: E402
from vlmplan.models.description import with_layout  # noqa: E402
from vlmplan.models.tree import model_tree  # noqa: E402
from vlmplan.recipe.choices import LossKind  # noqa: E402
from vlmplan.workload import ModelFiles  # noqa: E402
from vlmplan_trainer.engines.base import LossModule  # noqa: E402
from vlmplan_trainer.labels import TARGET_LABELS  # noqa: E402

PAIRS = Batch(micro_batch=2, num_tokens=48, target_tokens=12)
SAME_HEADS = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
"""A configuration has one number of heads for a generic model."""


def counted(model: Any, loss: LossKind, *, checkpoints: bool) -> int:
    """FLOPs of a step by torch's counter."""
    if checkpoints:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    ids = torch.arange(PAIRS.micro_batch * PAIRS.num_tokens).reshape(PAIRS.micro_batch, -1) % 100 + 5
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), TARGET_LABELS: ids[:, : PAIRS.target_tokens]}
    counter = FlopCounterMode(display=False)
    with counter:
        LossModule(model.train(), loss=loss)(batch).backward()
    return counter.get_total_flops()


@pytest.mark.one_in(11)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("kind", ["led", "longt5", "m2m_100", "mvp", "prophetnet", "t5", "t5gemma2", "umt5"])
def test_a_step_multiplies_what_transformers_multiplies(kind: str, checkpoints: bool):
    model = small_model(kind, **SAME_HEADS)
    model.set_attn_implementation("eager")
    loss = LossKind.MODEL if kind in OWN_LOSS_TYPES else LossKind.FULL
    tree = model_tree(with_layout(ModelFiles(id=kind, config=model.config.to_dict())))
    step = predicted_step(tree, PAIRS, implementation="eager", checkpoints=checkpoints, loss=loss)
    assert step.trace is not None
    found = sum(work.flops for work in step.trace.works())
    assert found == pytest.approx(counted(model, loss, checkpoints=checkpoints), rel=0.002)


@pytest.mark.parametrize("said", [16, [8, 16], [16, None]])
def test_the_widest_window_of_led_counts(said: Any):
    expected = LocalAttention(rows=8, pads_to=16, overlaps=True)
    assert local_attention({"model_type": "led", "attention_window": said}) == expected


def test_dropout_that_no_number_says_is_none():
    assert stack_facts({"model_type": "t5", "dropout_rate": "much"}).dropout == 0
    assert stack_facts({"model_type": "t5"}).dropout == 0.1
    assert stack_facts({"model_type": "llama", "dropout": 0.5}).dropout == 0

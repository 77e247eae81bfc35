"""Qwen-VL is remote code that is not run: its description is held to counts, names and arithmetic."""

import pytest

from model_table import assert_counts_match_the_table, packaged_config
from tape_probe import predicted_step
from vlmplan.architecture.families import build_model
from vlmplan.architecture.families.qwen_visual import VisualAttention
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import Linear
from vlmplan.architecture.tape import Tape
from vlmplan.errors import InputError
from vlmplan.units import DType

QWEN = packaged_config("qwen-vl-chat")
IMAGE = image_shape(QWEN, {}, width=448, height=448)
BATCH = Batch(micro_batch=2, num_tokens=512, images_per_sample=1, image=IMAGE)
BLOCK = ["ln_1.weight", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "ln_2.weight"]
BLOCK += ["mlp.w1.weight", "mlp.w2.weight", "mlp.c_proj.weight"]
VISUAL_BLOCK = [f"{name}.{kind}" for name in ("ln_1", "ln_2") for kind in ("weight", "bias")]
VISUAL_BLOCK += [f"{name}.{kind}" for name in ("attn.in_proj", "attn.out_proj") for kind in ("weight", "bias")]
VISUAL_BLOCK += [f"{name}.{kind}" for name in ("mlp.c_fc", "mlp.c_proj") for kind in ("weight", "bias")]
RESAMPLER = ["pos_embed", "query", "kv_proj.weight", "attn.in_proj_weight", "attn.in_proj_bias"]
RESAMPLER += ["attn.out_proj.weight", "attn.out_proj.bias", "ln_q.weight", "ln_q.bias", "ln_kv.weight", "ln_kv.bias"]


def test_counts_are_those_of_the_published_checkpoint():
    assert_counts_match_the_table("qwen-vl-chat")


def test_parameters_have_the_names_and_order_of_the_published_file():
    names = [entry.name for entry in build_model(QWEN).parameters()]
    visual = ["positional_embedding", "proj", "conv1.weight", "ln_pre.weight", "ln_pre.bias"]
    visual += [f"transformer.resblocks.{index}.{name}" for index in range(48) for name in VISUAL_BLOCK]
    visual += [f"attn_pool.{name}" for name in RESAMPLER]
    visual += ["ln_post.weight", "ln_post.bias"]
    expected = ["transformer.wte.weight"]
    expected += [f"transformer.h.{index}.{name}" for index in range(32) for name in BLOCK]
    expected += ["transformer.ln_f.weight"] + [f"transformer.visual.{name}" for name in visual]
    assert names == [*expected, "lm_head.weight"]


def test_the_attention_targets_are_those_of_the_decoder():
    model = build_model(QWEN)
    linears = [name for name, module in model.named_modules() if isinstance(module, Linear)]
    matched = [name for name in linears if name.endswith(tuple("." + target for target in model.attention_linears))]
    assert len(matched) == 2 * 32
    assert all(model.part_of(name) is Part.LANGUAGE for name in matched)


def test_forward_flops_are_two_per_weight_and_token_and_those_of_the_scores():
    trace = predicted_step(QWEN, BATCH).trace
    flops = sum(section.forward_work.flops for _, section in trace.forward())
    tokens, images, patches, queries = 2 * 512, 2, 32 * 32, 256
    decoder = 2 * tokens * (32 * (4 * 4096**2 + 3 * 4096 * 11008) + 151936 * 4096)
    scores = 32 * 2 * (2 * 32 * 512 * 512 * 128) * 2
    tower = 2 * images * patches * (48 * (4 * 1664**2 + 2 * 1664 * 8192) + 588 * 1664)
    tower_scores = 48 * 2 * (2 * images * patches * patches * 1664)
    resampler = 2 * images * (patches * (1664 * 4096 + 2 * 4096**2) + queries * 3 * 4096**2)
    resampler_scores = 2 * (2 * images * queries * patches * 4096)
    assert flops == decoder + scores + tower + tower_scores + resampler + resampler_scores


def test_a_visual_block_keeps_its_scores_in_the_models_type():
    trace = predicted_step(QWEN, BATCH).trace
    block = next(section for run, section in trace.forward() if run.key == "vision.0")
    kept = sum(event.delta_bytes for event in block.forward if hasattr(event, "delta_bytes"))
    rows, width, inner, heads = 2 * 1024, 1664, 8192, 16
    norms = 2 * (2 * rows * width + 2 * 4 * rows)
    attention = 2 * rows * (3 + 1 + 1) * width + 2 * heads * rows * 1024
    # The input of the block was counted before; its two sums are inputs of a norm and of the next block.
    assert kept == norms + attention + 2 * rows * 2 * inner + 2 * (2 * rows * width)


def test_autocast_keeps_the_probabilities_of_a_visual_block_in_float32_beside_the_cast_that_is_multiplied():
    heads, patches, images = 4, 5, 2
    kept: dict[DType | None, int] = {}
    for autocast in (None, DType.BFLOAT16):
        tape = Tape(autocast=autocast)
        with tape.section("vision"):
            result = VisualAttention(128, heads)(tape.tensor((patches, images, 128), DType.BFLOAT16))
            kept[autocast] = tape.total
            del result
    assert kept[DType.BFLOAT16] - kept[None] == heads * images * patches * patches * DType.FLOAT32.num_bytes


@pytest.mark.parametrize("checkpoints", [False, True])
def test_attention_is_written_out_whatever_is_asked_for(checkpoints):
    steps = [
        predicted_step(QWEN, BATCH, implementation=name, checkpoints=checkpoints)
        for name in ("sdpa", "eager", "flash_attention_2")
    ]
    assert len({step.backward_peak for step in steps}) == 1
    assert all(step.end_live == 0 for step in steps)


def test_only_the_decoder_is_checkpointed():
    plain, checkpointed = (predicted_step(QWEN, BATCH, checkpoints=value).trace for value in (False, True))

    def kept(trace, prefix):
        sections = [section for run, section in trace.forward() if run.key.startswith(prefix)]
        return sum(event.delta_bytes for s in sections for event in s.forward if hasattr(event, "delta_bytes"))

    assert kept(checkpointed, "vision.0") == kept(plain, "vision.0")
    assert kept(checkpointed, "layers.0") < 0.1 * kept(plain, "layers.0")


def test_a_batch_without_images_still_runs_the_visual_part_on_a_blank_one():
    text = Batch(micro_batch=2, num_tokens=512)
    step = predicted_step(QWEN, text)
    assert step.end_live == 0
    blank = sum(s.forward_work.flops for run, s in step.trace.forward() if run.key.startswith("vision"))
    assert 0 < blank < 2 * 256 * 2e9


def test_text_models_of_the_same_type_are_refused():
    with pytest.raises(InputError, match="visual"):
        build_model({key: value for key, value in QWEN.items() if key != "visual"})

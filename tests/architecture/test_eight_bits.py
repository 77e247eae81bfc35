"""Weights in eight bits: a byte each and a scale a row; inputs stay as long as the graph that quantised them."""

from math import ceil

import pytest

from cli_calls import TINY
from planned import cluster
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.int8_weight import Linear8bitLt
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Linear
from vlmplan.architecture.prepare import prepared_model
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Trace
from vlmplan.engines.profile import forward_rise, micro_batch_profile
from vlmplan.estimation import Estimator
from vlmplan.estimation.micro_batch import tape_for
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import CheckpointKind, LossKind, Method
from vlmplan.units import DType
from vlmplan.workload import ModelFiles, Workload

HIDDEN, INNER, HALF_HIDDEN, OUTLIERS = 64, 128, 64 // 2, 7
ROWS = (HIDDEN, HALF_HIDDEN, HALF_HIDDEN, HIDDEN, INNER, INNER, HIDDEN)
"""Of q, k, v, o, gate, up and down."""
COLUMNS = (HIDDEN, HIDDEN, HIDDEN, HIDDEN, HIDDEN, HIDDEN, INNER)
NUM_LAYERS, SAMPLES, TOKENS = 5, 3, 11
INT8 = Recipe(method=Method.LORA_8BIT, zero_stage=1)


def test_a_weight_is_a_byte_an_element_with_a_float32_scale_a_row():
    model = prepared_model(TINY, INT8)
    weights = [one for _, one in model.distinct_parameters() if one.stored_bytes is not None]
    sizes = [(rows * columns, 4 * rows, 8 * OUTLIERS) for rows, columns in zip(ROWS, COLUMNS, strict=True)]
    assert sum(weight.stored_bytes for weight in weights) == sum(
        512 * ceil(num_bytes / 512) for tensors in sizes for num_bytes in tensors
    )
    assert sum(weight.packed_bytes for weight in weights) == sum(tensors[0] for tensors in sizes)


def test_a_product_is_there_in_three_types_at_once_and_its_input_and_outliers_stay():
    rows, columns, tokens = 1024, 512, 128
    base = Linear(columns, rows)
    base.weight.dtype = DType.BFLOAT16
    packed = Linear8bitLt(base)
    tape = Tape(follows_weights=False)
    with tape.section("before"):
        x = tape.leaf(tape.tensor((1, tokens, columns), DType.BFLOAT16))
    with tape.section("product"):
        result = packed(x)
    [product] = tape.trace().sections["product"].forward
    del result
    quantised, scales, outliers = tokens * columns, 4 * tokens, 2 * tokens * OUTLIERS
    int32_float16_and_bfloat16 = (4 + 2 + 2) * tokens * rows
    assert product.peak_bytes == quantised + scales + outliers + 2 * rows * OUTLIERS + int32_float16_and_bfloat16
    assert product.delta_bytes == outliers + 2 * tokens * rows


WHOLE_LAYERS = CheckpointKind.NON_REENTRANT, CheckpointKind.REENTRANT


def traced(recipe: Recipe) -> Trace:
    model = prepared_model(TINY | {"num_hidden_layers": NUM_LAYERS}, recipe)
    batch = Batch(micro_batch=SAMPLES, num_tokens=TOKENS)
    return model.run(tape_for(Tape, recipe), batch, AttentionBackend(implementation="sdpa"), loss=LossKind.CHUNKED)


def test_checkpoints_that_are_not_reentrant_keep_the_inputs_of_all_products():
    keeping, freeing = (traced(INT8.with_changes(checkpoint_kind=kind)) for kind in WHOLE_LAYERS)
    inputs = 2 * SAMPLES * TOKENS * (HIDDEN + HIDDEN + HIDDEN + INNER)  # q, k and v have one, gate and up too
    outliers = 2 * SAMPLES * TOKENS * OUTLIERS * len(ROWS)
    without_gradient = 2 * SAMPLES * TOKENS * (HIDDEN + 3 * OUTLIERS)  # of the first layer's q, k and v
    kept = NUM_LAYERS * (inputs + outliers) - without_gradient
    assert forward_rise(keeping)[1] - forward_rise(freeing)[1] == kept
    assert micro_batch_profile(keeping).dropped_peak > micro_batch_profile(freeing).dropped_peak


@pytest.mark.parametrize("method", [Method.LORA, Method.LORA_8BIT])
@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize("kind", CheckpointKind)
def test_all_layers_leave_nothing_when_the_graph_is_gone(method: Method, checkpoints: bool, kind: CheckpointKind):
    changes = {"method": method, "activation_checkpointing": checkpoints, "checkpoint_kind": kind}
    trace = traced(INT8.with_changes(**changes))
    integers = 3 * 8 * SAMPLES * TOKENS
    assert sum(trace.change) == integers  # the batch itself


def test_adapters_beside_weights_of_eight_bits_are_float32_until_the_trainer_casts_them():
    """All are there when the first, lora_A of q, has been cast and still has its float32."""
    rank = 512
    recipe = INT8.with_changes(lora_rank=rank)
    workload = Workload(model=ModelFiles(id="tiny", config=TINY), seq_len=TOKENS)
    load = Estimator(workload, recipe).timeline_of_tensors(recipe, cluster(num_gpus=2)).phases[0]
    numel = rank * sum(rows + columns for rows, columns in zip(ROWS, COLUMNS, strict=True)) * TINY["num_hidden_layers"]
    assert load.name == "load"
    assert load.peak.total - load.resident.total == (4 - 2) * numel + 2 * rank * HIDDEN

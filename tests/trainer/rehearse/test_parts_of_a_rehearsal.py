"""Autocast, attention, sums of gradients, known values, messages and DeepSpeed's accelerator of a rehearsal."""

import re
from pathlib import Path

import pytest
import torch
from forked import outcomes_of
from rehearsals import many_rehearsed, rehearsed, request_for
from trainer_runs import planned

from vlmplan_trainer.models.tiny import write_tiny_model
from vlmplan_trainer.rehearse import autocast
from vlmplan_trainer.rehearse.special_operations import TAKES_ALL

HERE = Path(__file__).parent
CAPABILITIES = ("7.0", "7.5", "8.0", "9.0")
CHECKS = [
    "dtypes_under_autocast",
    "types_by_default",
    "casts_of_a_weight",
    "inside_flash_backward",
    "inside_backward_with_a_learned_bias",
    "inside_attention_with_a_boolean_mask",
    "layouts_of_attention",
    "inside_what_cuda_does_in_two_steps",
    "inside_the_backward_of_indexing",
    "inside_products_of_packed_weights",
    "inside_a_part_of_a_tensor_made_of_another",
    "summed_gradients",
    "live_while_makers_are_asked",
    "values",
    "groups_without_padding",
    "rows_of_experts",
    "tokens_of_experts",
    "collectives",
    "attention on ampere",
    "attention on turing",
    *(f"accelerator {capability}" for capability in CAPABILITIES),
]
LISTS = {
    "AT_FORALL_LOWER_PRECISION_FP": autocast.LOWER_PRECISION,
    "AT_FORALL_FP32": autocast.FLOAT32,
    "AT_FORALL_FP32_SET_OPT_DTYPE": autocast.FLOAT32_RESULT,
    "AT_FORALL_PROMOTE": autocast.WIDEST,
}
NOT_MET = {
    "_scaled_dot_product_flash_attention",  # what scaled_dot_product_attention calls below autocast
    "_thnn_fused_gru_cell",
    "_thnn_fused_lstm_cell",
    "binary_cross_entropy",  # refused under autocast
    "cudnn_convolution",
    "cudnn_convolution_transpose",
    "gru_cell",
    "lstm_cell",
    "norm.Scalar",
    "norm.ScalarOpt_dim",
    "rnn_relu_cell",
    "rnn_tanh_cell",
}
"""Operations of CUDA's autocast that training a language model does not meet."""


@pytest.fixture(scope="module")
def found():
    outcomes = outcomes_of(HERE / "part_checks.py", CHECKS)
    assert all("found" in outcome for outcome in outcomes.values()), outcomes
    return {name: outcome["found"] for name, outcome in outcomes.items()}


def test_autocast_has_all_operations_of_cudas_but_those_that_training_does_not_meet():
    names = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    here = {name for names in LISTS.values() for name in names}
    assert sum(map(len, LISTS.values())) == len(here)
    assert here | NOT_MET == {name.removeprefix("aten::") for name in names}
    assert not here & NOT_MET


@pytest.mark.parametrize("macro", LISTS)
def test_autocast_has_every_operation_in_the_list_that_torch_has_it_in(macro):
    text = (Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h").read_text()
    [body] = re.findall(rf"#define {macro}\(_\)((?:.*\\\n)+.*\n)", text)
    torchs = {name.replace(", ", ".") for name in re.findall(r"_\(([\w, ]+)\)", body)}
    assert torchs - NOT_MET == set(LISTS[macro])


@pytest.mark.sweep
def test_autocast_treats_results_as_cudas_does(found):
    assert found["dtypes_under_autocast"] == {
        "linear": "bfloat16",
        "linear of float16 asked": "float16",
        "linear outside": "float32",
        "matmul of float64": "float64",
        "layer_norm": "float32",
        "softmax": "float32",
        "softmax to bfloat16": "bfloat16",
        "sum": "float32",
        "addcmul": "float32",
        "addcmul of halves": "bfloat16",
        "mul": "bfloat16",
        "interpolate": "float32",
    }


@pytest.mark.sweep
def test_what_is_made_without_a_type_has_the_default_of_the_moment(found):
    assert found["types_by_default"] == ["torch.bfloat16", "torch.float32"]


@pytest.mark.sweep
def test_autocast_copies_a_weight_once_where_it_caches(found):
    assert found["casts_of_a_weight"] == {"True": 1, "False": 2}


@pytest.mark.sweep
def test_ampere_runs_flash_attention_where_it_can(found):
    assert found["attention on ampere"] == {
        "alike": "fused",
        "grouped": "fused",
        "masked": "fused",  # memory-efficient
        "masked, keys apart": "math",  # which no fused kernel takes
        "grouped, masked": "math",
        "grouped float32": "math",
        "one head, not told": "math",
        "alike float16": "fused",
        "masked float16": "fused",
        "grouped float16": "fused",
    }


@pytest.mark.sweep
def test_turing_has_no_flash_attention_so_grouped_heads_have_no_fused_kernel(found):
    on_turing = found["attention on turing"]
    assert on_turing["alike float16"] == on_turing["masked float16"] == "fused"
    assert on_turing["grouped float16"] == on_turing["grouped float32"] == "math"


@pytest.mark.sweep
def test_turing_has_no_fused_kernel_for_bf16(found):
    on_turing = found["attention on turing"]
    assert on_turing["alike"] == on_turing["masked"] == on_turing["grouped"] == on_turing["grouped, masked"] == "math"


@pytest.mark.sweep
def test_backward_of_flash_attention_takes_what_the_kernel_allocates(found):
    batch, heads, groups, tokens, width = 2, 6, 3, 130, 40
    rows, columns = 256, 64  # rounded up to tiles
    gradient, narrow = 2 * batch * heads * tokens * width, 2 * batch * groups * tokens * width
    of_kernel = [4 * batch * heads * rows, 4 * batch * heads * rows * columns, gradient, gradient]
    assert found["inside_flash_backward"] == sorted([gradient, narrow, narrow, *of_kernel])


@pytest.mark.sweep
def test_the_gradient_of_a_learned_bias_is_made_in_rows_of_16_and_cut_twice(found):
    batch, heads, tokens, width = 2, 3, 196, 64
    rows = batch * heads * tokens
    of_kernel = [4 * rows, batch * heads * 4 * (16 + 4 * 64 * 64)]  # 196 tokens are four tiles of 64
    gradients = [2 * rows * width] * 3
    of_bias = [2 * rows * 208, 2 * rows * 200, 2 * rows * 196]  # the kernel's, of the padded bias, of the bias
    assert found["inside_backward_with_a_learned_bias"] == sorted([*gradients, *of_kernel, *of_bias])


@pytest.mark.sweep
def test_of_a_boolean_mask_nothing_is_made_but_the_bias_as_torch_does(found):
    bias, result = 2 * 512 * 512, 2 * 2 * 512 * 64
    assert found["inside_attention_with_a_boolean_mask"] == [bias, result]
    parts, mask = [torch.zeros(1, 2, 16, 64) for _ in "qkv"], torch.ones(16, 16, dtype=torch.bool)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        torch.nn.functional.scaled_dot_product_attention(*parts, mask)
    operations = {event.name for event in profiled.events()}
    assert "aten::where" in operations
    assert "aten::logical_not" not in operations


@pytest.mark.sweep
def test_flash_attention_lays_out_its_result_like_the_queries_and_the_memory_efficient_kernel_by_tokens(found):
    assert found["layouts_of_attention"] == {"flash": False, "masked": True, "float32": True}


@pytest.mark.sweep
def test_cuda_makes_products_exponentials_and_absolute_values_beside_what_it_returns(found):
    rows, columns, four, half, flag = 64, 1000, 4, 2, 1
    assert found["inside_what_cuda_does_in_two_steps"] == {
        "softmax backward": [four * rows * columns] * 2,
        "embedding backward": [half * 64_000, *[8 * 4096] * 3, 8_000, 8_000, 8 * 1409, four * 1409 * 64],
        "embedding backward of few tokens": [half * 64_000],
        "log_softmax backward": [four * rows * columns],
        "logsumexp": [four * rows, four * rows * columns],
        "isinf": [half * rows * columns, flag * rows * columns],
        "sum of booleans": [flag * rows * columns, 8 * rows, 8 * rows * columns],
        "sum of float16": [four * rows],
        "dropout": [flag * rows * columns, half * rows * columns],
        "dropout of equal shapes": [flag * rows * columns, half * rows * columns],
    }


@pytest.mark.sweep
def test_the_gradient_of_what_is_taken_is_written_into_its_own_zeros(found):
    """As on a card; with a mode that watches torch makes a second tensor as large (``areAnyTensorSubclassLike``)."""
    assert found["inside_the_backward_of_indexing"] == {name: [4 * 1000] for name in ("index", "gather", "max", "topk")}


@pytest.mark.sweep
def test_packed_weights_are_made_whole_with_their_scales_in_float32(found):
    rows, columns, tokens = 1024, 512, 128
    whole, scales = 2 * rows * columns, 4 * rows * columns // 64
    less_their_mean_and_with_it = [scales, scales]
    assert found["inside_products_of_packed_weights"] == {
        "forward": sorted([*less_their_mean_and_with_it, whole, 2 * tokens * rows]),
        "backward": sorted([scales, whole, 2 * tokens * columns]),
    }


@pytest.mark.sweep
def test_tensors_made_of_others_answer_for_themselves(found):
    """A part of torchao's moments is a view of their codes, as DeepSpeed takes it of every weight behind the first step
    of stages 1 and 2."""
    assert found["inside_a_part_of_a_tensor_made_of_another"] == {"allocated": [], "kind": "Packed"}


@pytest.mark.sweep
def test_second_gradient_is_added_to_the_first_unless_somebody_else_holds_it(found):
    assert found["summed_gradients"] == {"alone": 2, "held": 3}


@pytest.mark.sweep
def test_asking_who_makes_a_tensor_keeps_no_other(found):
    of_caller, before, new = 1, 1, 1
    assert found["live_while_makers_are_asked"] == {"tensors": of_caller + before + new, "maker": "inner"}


@pytest.mark.sweep
def test_values_of_integers_are_followed(found):
    assert found["values"] == {
        "list": [[2, 3, 5], [5, 7, 2]],
        "sum": 2 + 3 + 5 + 5 + 7 + 2,
        "where": [[0, 2], [1, 0]],
        "picked": [2, 11],
        "changed": [[3, 4, 14], [14, 8, 3]],
        "untouched": [[2, 3, 5], [5, 7, 2]],
        "unique": [2, 3, 5, 7],
        "repeated": 5 + 7 + 2,
        "view": [3, 5, 5],
        "large view is known": True,
        "is lost": True,
        "unknown": [0.0, False, 0],
        "pixels are not zero": False,
    }


@pytest.mark.sweep
def test_a_mask_that_is_not_known_picks_every_group_of_keys_of_samples_without_padding(found):
    from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextIndexer

    file, function = TAKES_ALL
    assert getattr(Glm5NextTextIndexer, function).__code__.co_filename.endswith(file)
    assert found["groups_without_padding"] == {function: [2, 6, 4], "another": None}


@pytest.mark.sweep
def test_rows_that_are_split_among_experts_by_unknown_numbers_are_shared_evenly(found):
    assert found["rows_of_experts"] == [3, 2, 2]


@pytest.mark.sweep
def test_experts_that_a_loop_asks_for_their_tokens_get_as_many_each(found):
    assert found["tokens_of_experts"] == [[0, 3], [1, 3], [2, 3], [3, 3]]


@pytest.mark.sweep
def test_messages_are_counted_by_their_larger_side_and_the_ranks_that_take_part(found):
    common = {"phase": "step", "step": 2}
    assert found["collectives"] == [
        {**common, "kind": "allgather_base", "count": 2, "num_bytes": 2 * 100 * 2},
        {**common, "kind": "reduce_scatter_base", "count": 1, "num_bytes": 100 * 2},
        {**common, "kind": "allreduce", "count": 1, "num_bytes": 7 * 4},
        {**common, "kind": "broadcast", "count": 1, "num_bytes": 3 * 8},
        {**common, "kind": "allreduce", "count": 1, "num_bytes": 7 * 4, "group_size": 2, "ranks_apart": 2},
    ]


@pytest.mark.sweep
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_accelerator_is_cuda_of_its_capability(found, capability):
    accelerator = found[f"accelerator {capability}"]
    assert accelerator["bf16"] == (capability >= "8.0")
    assert accelerator["fp16"]
    assert not accelerator["resolves_data_dependency"]
    assert not accelerator["is_synchronized_device"]
    assert accelerator["name"] == "gpu:0"
    assert accelerator["available"] == accelerator["total"] - 2**30


@pytest.mark.sweep
def test_overlapped_reduction_has_a_second_bucket(tmp_path):
    model = write_tiny_model(tmp_path / "llama", "llama", hidden_size=128, vocab_size=2048)
    plan = planned(model, gpu="h100-sxm5-80gb:2", zero_stage="2", activation_checkpointing=False)
    requests = [request_for(plan, num_steps=2, saves=False) for _ in range(2)]
    bucket_elements = 32768
    for request, overlaps in zip(requests, (True, False), strict=True):
        for settings in (request["plan"]["ds_config"]["zero_optimization"], request["plan"]["recipe"]["zero"]):
            settings |= {"overlap_comm": overlaps, "reduce_bucket_size": bucket_elements}
    overlapped, plain = (
        next(phase["peak_bytes"] for phase in answer["phases"] if (phase["name"], phase["step"]) == ("backward", 2))
        for answer in many_rehearsed(requests)
    )
    assert overlapped - plain == 2 * bucket_elements


@pytest.mark.sweep
@pytest.mark.parametrize("changes", [{"fsdp": True}, {"zero_stage": "2"}])
def test_ranks_compile_no_collectives_of_shared_memory(tmp_path, monkeypatch, changes):
    """DeepSpeed's are for ranks on the CPU; whoever finds the lock of a build that was ended waits for ever."""
    model = write_tiny_model(tmp_path / "llama", "llama")
    extensions = tmp_path / "extensions"
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(extensions))
    rehearsed(request_for(planned(model, gpu="h100-sxm5-80gb:2", **changes), num_steps=2, saves=False))
    assert not extensions.exists()

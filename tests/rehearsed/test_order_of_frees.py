"""What is gone when something else is made, and in which type: bytes of a plan beside those of a rehearsal with two
layers of a stack."""

from pathlib import Path

import pytest
from rehearsed_cases import write_model

from cli_calls import request_of_words
from vlmplan.cli.estimate import estimate as command
from vlmplan.estimation import Estimate
from vlmplan.memory.overhead import workspace_bytes
from vlmplan.requested import requested_estimate
from vlmplan.units import MIB


def estimated(folder: Path, alias: str, words: str) -> Estimate:
    write_model({"alias": alias, "config": {"num_hidden_layers": 2}}, folder)
    return requested_estimate(request_of_words(command, "--model", str(folder), *words.split()), ())[0]


def tensors_mib(found: Estimate, name: str) -> float:
    """The peak of a phase without workspaces of libraries."""
    phase = next(phase for phase in found.timeline.phases if phase.name == name)
    return (phase.peak.total - workspace_bytes(found.cluster.node.gpu)) / MIB


def test_a_4_bit_product_frees_its_scales_first_and_a_dropped_input_of_dora_waits_for_the_sum(tmp_path: Path):
    """Phi-4 mini, whose last backward finds the places that these leave (``_dequant_linear_fallback`` of bitsandbytes,
    ``DoraLinearVariant`` of peft)."""
    words = "--method qlora --gpu b200:4 --zero-stage none --micro-batch 1 --grad-accum 3 --seq-len 1024 "
    words += "--activation-checkpointing --attention eager --lora-rank 64 --use-dora --lora-dropout 0.05 "
    found = estimated(tmp_path, "phi-4-mini", words + "--no-expandable-segments")
    assert found.device.reserved_bytes / MIB == pytest.approx(4472, rel=0.001)


def test_whole_gradients_in_float32_are_gone_when_the_host_gets_this_rank_s_shards(tmp_path: Path):
    """Llama 2 7B with samples shared by two: the cast of the head's gradient has 500 MiB, what ``_scatter`` returns 31
    MiB, whose norm takes 125 MiB (``__avg_scatter_grads`` of DeepSpeed)."""
    words = "--method lora --gpu h200-sxm:8 --zero-stage 3 --offload-optimizer cpu --sequence-parallel 2 "
    words += "--micro-batch 2 --grad-accum 1 --seq-len 1500 --no-activation-checkpointing --lora-rank 16 "
    found = estimated(tmp_path, "llama-2-7b", words + "--train-embeddings --expandable-segments")
    assert found.reserved_with_room_bytes / MIB == pytest.approx(4150, rel=0.001)


def test_backward_dequantises_to_the_type_in_which_weights_were_loaded_and_casts(tmp_path: Path):
    """Gemma 2 27B loaded in float32: 648 MiB of a projection in that and 324 MiB in bfloat16 (``MatMul4Bit``)."""
    words = "--method qlora --gpu a100-sxm4-80gb:1 --zero-stage none --weight-dtype float32 --micro-batch 2 "
    words += "--grad-accum 1 --activation-checkpointing --attention flash_attention_2 --lora-rank 4 --seq-len 777 "
    words += "--lora-dropout 0.05 --no-double-quant --optimizer paged-adamw-8bit"
    found = estimated(tmp_path, "gemma-2-27b", words)
    assert tensors_mib(found, "backward") == pytest.approx(7269, rel=0.001)


def test_flash_attention_of_packed_layers_in_float32_runs_in_the_type_of_the_configuration(tmp_path: Path):
    """Llama 3.1 8B in 8 bits without autocast: the rest in float32, and the output projection holds 16-bit inputs."""
    words = "--method lora-8bit --gpu b200:1 --zero-stage none --no-autocast --foreach-optimizer --kbit-upcast "
    words += "--micro-batch 1 --grad-accum 2 --seq-len 1500 --activation-checkpointing --offload-activations "
    words += "--attention flash_attention_2 --batching packed --lora-rank 64 --loraplus-lr-ratio 16 --optimizer adamw"
    found = estimated(tmp_path, "llama-3.1-8b", words)
    assert tensors_mib(found, "forward") == pytest.approx(5196.3, rel=0.0005)
    assert tensors_mib(found, "backward") == pytest.approx(5650.6, rel=0.0005)

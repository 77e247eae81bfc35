"""Of all that a log says, the last time that memory ran out counts, and of it what says most."""

import pytest

from vlmplan.diagnosis.evidence import evidence_in
from vlmplan.diagnosis.log import Log
from vlmplan.errors import InputError
from vlmplan.memory_messages import Kind

SIZED = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU {} has a total capacity of 79.15 GiB of which 1.00 GiB "
    "is free. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 6.00 GiB is reserved by PyTorch but "
    "unallocated."
)
BAR = " 15%|█▍ | {}/882 [40:17<3:41:05, 17.62s/it]"


def evidence(*lines: str, is_cut: bool = False):
    return evidence_in(Log(source="train.log", text="\n".join(lines), is_cut=is_cut))


def test_the_first_of_several_ranks_is_the_cause():
    found = evidence(
        BAR.format(7), f"[rank3]: {SIZED.format(3)}", f"[rank0]: {SIZED.format(0)}", f"[rank0]: {SIZED.format(0)}"
    )
    assert (found.rank, found.message.device, found.num_ranks, found.line_number) == (3, 3, 2, 2)


def test_ranks_that_are_killed_afterwards_are_not_the_cause():
    killed = "failed (exitcode: -9) local_rank: 2 (pid: 438)"
    found = evidence(BAR.format(7), killed, SIZED.format(0), killed)
    assert found.message.kind is Kind.DEVICE
    assert evidence(BAR.format(7), killed).message.kind is Kind.KILLED


def test_what_was_caught_or_started_again_is_counted_and_left_out():
    found = evidence(BAR.format(5), SIZED.format(0), BAR.format(9), SIZED.format(1))
    assert (found.num_earlier, found.message.device, found.progress.steps_done) == (1, 1, 9)


def test_a_message_without_sizes_gives_way_to_one_with():
    found = evidence("RuntimeError: CUDA error: out of memory", SIZED.format(0))
    assert found.message.requested_bytes is not None


def test_of_a_cut_log_no_line_is_numbered():
    assert evidence(SIZED.format(0), is_cut=True).line_number is None


def test_a_log_without_such_a_message_is_refused_with_what_was_looked_for():
    with pytest.raises(
        InputError, match=r"train.log has no out-of-memory message; looked for messages of torch's alloc"
    ):
        evidence("{'loss': 0.5}", "Training completed.")


def test_a_checkpoint_of_sharded_weights_is_named_though_no_memory_ran_out():
    """As DeepSpeed 0.18.9 ends LoRA under ZeRO-3 with checkpoints that are not reentrant."""
    lines = (
        "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following tensors "
        "have different metadata than during the forward pass.",
        "tensor at position 4:",
        "saved metadata: {'shape': torch.Size([256]), 'dtype': torch.bfloat16, 'device': device(type='cuda', index=0)}",
    )
    sharded = "recomputed metadata: {'shape': torch.Size([0]), 'dtype': torch.bfloat16, 'device': device(type='cuda')}"
    with pytest.raises(InputError, match=r"CheckpointError of weights that ZeRO-3 has sharded.*0\.19\.3"):
        evidence(*lines, sharded)
    with pytest.raises(InputError, match="looked for messages of torch's alloc"):
        evidence(*lines, sharded.replace("[0]", "[128]"))

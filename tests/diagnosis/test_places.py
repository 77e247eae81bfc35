"""Tracebacks name the phase and what was being made: as libraries print them, whole and interleaved."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmplan.diagnosis.frames import frames_before
from vlmplan.diagnosis.places import Part, Phase, Place, place_of

SITE = "/opt/conda/lib/python3.10/site-packages"
ERROR = "torch.OutOfMemoryError: CUDA out of memory."
TRAINER = [
    ("/home/me/train.py", 12, "<module>", "trainer.train()"),
    (f"{SITE}/transformers/trainer.py", 2052, "train", "return inner_training_loop("),
    (
        f"{SITE}/transformers/trainer.py",
        2388,
        "_inner_training_loop",
        "tr_loss_step = self.training_step(model, inputs)",
    ),
]
STEP = (f"{SITE}/transformers/trainer.py", 3485, "training_step", "loss = self.compute_loss(model, inputs)")
CALL = (f"{SITE}/torch/nn/modules/module.py", 1750, "_call_impl", "return forward_call(*args, **kwargs)")
LLAMA = f"{SITE}/transformers/models/llama/modeling_llama.py"
QWEN = f"{SITE}/transformers/models/qwen2_vl/modeling_qwen2_vl.py"
LAYER = (LLAMA, 350, "forward", "hidden_states = self.mlp(hidden_states)")
MLP = (LLAMA, 200, "forward", "down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))")
EAGER = (
    LLAMA,
    180,
    "eager_attention_forward",
    "attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32)",
)
LOSS = [
    (LLAMA, 870, "forward", "loss = self.loss_function(logits=logits, labels=labels)"),
    (f"{SITE}/transformers/loss/loss_utils.py", 36, "ForCausalLMLoss", "logits = logits.float()"),
]
OLD_LOSS = [(LLAMA, 1208, "forward", "logits = logits.float()")]
SHIFTED = [(QWEN, 1192, "forward", "shift_logits = logits[..., :-1, :].contiguous()")]
MOVED = [
    (f"{SITE}/torch/nn/modules/module.py", 1159, "convert", "return t.to("),
    (f"{SITE}/bitsandbytes/nn/modules.py", 330, "to", "super().to(device=device, dtype=dtype)"),
]
BACKWARD = [
    (f"{SITE}/accelerate/accelerator.py", 2237, "backward", "loss.backward(**kwargs)"),
    (f"{SITE}/torch/_tensor.py", 581, "backward", "torch.autograd.backward("),
    (f"{SITE}/torch/autograd/__init__.py", 347, "backward", "_engine_run_backward("),
]
RECOMPUTED = (f"{SITE}/torch/utils/checkpoint.py", 271, "backward", "outputs = ctx.run_function(*detached_inputs)")
ADAMW = [
    (f"{SITE}/accelerate/optimizer.py", 171, "step", "self.optimizer.step(closure)"),
    (f"{SITE}/torch/optim/adamw.py", 220, "step", "adamw("),
    (
        f"{SITE}/torch/optim/adamw.py",
        600,
        "_multi_tensor_adamw",
        "exp_avg_sq_sqrt = torch._foreach_sqrt(device_exp_avg_sqs)",
    ),
]
WIDENED = (f"{SITE}/accelerate/utils/operations.py", 781, "_convert_to_fp32", "return tensor.float()")
CUT = [(f"{SITE}/transformers/loss/loss_utils.py", 36, "fixed_cross_entropy", "loss = nn.functional.cross_entropy(")]
"""What is left of a traceback of which only the last lines were kept."""
ZERO_STEP = [(f"{SITE}/deepspeed/runtime/zero/stage_1_and_2.py", 1885, "step", "int(self.partition_elements[i])).to(")]
CLIPPING = [(f"{SITE}/torch/nn/utils/clip_grad.py", 50, "clip_grad_norm_", "norms.extend(torch._foreach_norm(grads))")]
EVALUATION = [
    (f"{SITE}/transformers/trainer.py", 3011, "_maybe_log_save_evaluate", "metrics = self._evaluate(trial)"),
    (f"{SITE}/transformers/trainer.py", 3870, "evaluation_loop", "logits = self.gather_function((logits))"),
    (f"{SITE}/transformers/trainer_pt_utils.py", 97, "nested_concat", "return torch_pad_and_concatenate(tensors)"),
]
PREDICTION = [
    (f"{SITE}/transformers/trainer.py", 3870, "evaluation_loop", "losses, logits, labels = self.prediction_step("),
    (f"{SITE}/transformers/trainer.py", 4080, "prediction_step", "loss, outputs = self.compute_loss("),
]
GENERATION = [PREDICTION[0], (f"{SITE}/transformers/generation/utils.py", 2215, "generate", "result = self._sample(")]
SAVE = [
    (f"{SITE}/transformers/trainer.py", 3011, "_save_checkpoint", "self.save_model(output_dir, _internal_call=True)"),
    (f"{SITE}/deepspeed/runtime/engine.py", 3500, "_zero3_consolidated_16bit_state_dict", "param.detach().cpu()"),
]
RESUME = [
    (
        f"{SITE}/transformers/integrations/deepspeed.py",
        450,
        "deepspeed_load_checkpoint",
        "deepspeed_engine.load_checkpoint(",
    ),
    (
        f"{SITE}/deepspeed/runtime/engine.py",
        2790,
        "load_checkpoint",
        "load_path, client_states = self._load_checkpoint(",
    ),
]
LOAD = [
    (f"{SITE}/transformers/modeling_utils.py", 4000, "from_pretrained", "return cls._load_pretrained_model("),
    (f"{SITE}/transformers/modeling_utils.py", 787, "_load_state_dict_into_meta_model", "param = param[...]"),
]
SETUP = [
    (f"{SITE}/accelerate/accelerator.py", 1751, "_prepare_deepspeed", "engine = deepspeed.initialize(**kwargs)"),
    (f"{SITE}/deepspeed/runtime/engine.py", 306, "__init__", "self._configure_optimizer(optimizer, model_parameters)"),
]
GATHER = [
    (
        f"{SITE}/deepspeed/runtime/zero/partitioned_param_coordinator.py",
        280,
        "fetch_sub_module",
        "self.__all_gather_params(",
    ),
    (f"{SITE}/deepspeed/runtime/zero/partition_parameters.py", 1200, "all_gather_coalesced", "torch.empty("),
]
VISION = [
    (QWEN, 1400, "forward", "image_embeds = self.visual(pixel_values, grid_thw=image_grid_thw)"),
    (QWEN, 375, "forward", "attn_output = F.scaled_dot_product_attention(q, k, v, attention_mask, dropout_p=0.0)"),
]
IMAGES = [(f"{SITE}/transformers/models/qwen2_vl/image_processing_qwen2_vl.py", 300, "preprocess", "image = resize(")]

Frames = list[tuple[str, int, str, str]]


def traceback_of(frames: Frames, prefix: str = "") -> str:
    lines = ["Traceback (most recent call last):"]
    for file, line, function, code in frames:
        lines += [f'  File "{file}", line {line}, in {function}', f"    {code}", "    ^^^^^^"]
    return "".join(f"{prefix}{line}\n" for line in [*lines, ERROR])


def place(frames: Frames) -> Place:
    text = traceback_of(frames)
    return place_of(frames_before(text, text.index(ERROR)))


@pytest.mark.parametrize(
    ("frames", "phase", "part"),
    [
        ([*TRAINER, STEP, CALL, LAYER, CALL, MLP], Phase.FORWARD, Part.MLP),
        ([*TRAINER, STEP, CALL, LAYER, EAGER], Phase.FORWARD, Part.ATTENTION),
        ([*TRAINER, STEP, CALL, *LOSS], Phase.LOSS, Part.LOGITS),
        ([*TRAINER, STEP, CALL, *OLD_LOSS], Phase.LOSS, Part.LOGITS),
        ([*TRAINER, STEP, CALL, *SHIFTED], Phase.LOSS, Part.LOGITS),
        (CUT, Phase.LOSS, Part.LOGITS),
        ([*TRAINER, STEP, CALL, WIDENED], Phase.LOSS, Part.LOGITS),
        (MOVED, Phase.LOAD, Part.WEIGHTS),
        ([*TRAINER, STEP, *BACKWARD], Phase.BACKWARD, None),
        ([*TRAINER, STEP, *BACKWARD, RECOMPUTED, LAYER, CALL, MLP], Phase.BACKWARD, Part.MLP),
        ([*TRAINER, *ADAMW], Phase.STEP, Part.OPTIMIZER_STATES),
        ([*TRAINER, *ZERO_STEP], Phase.STEP, Part.OPTIMIZER_STATES),
        ([*TRAINER, *CLIPPING], Phase.CLIPPING, None),
        ([*TRAINER, *EVALUATION], Phase.EVALUATION, Part.GATHERED_LOGITS),
        ([*TRAINER, *PREDICTION, CALL, *OLD_LOSS], Phase.EVALUATION, Part.LOGITS),
        ([*TRAINER, *GENERATION, CALL, LAYER, CALL, MLP], Phase.GENERATION, Part.MLP),
        ([*TRAINER, *SAVE], Phase.SAVE, Part.WEIGHTS),
        ([*TRAINER, *RESUME], Phase.RESUME, Part.WEIGHTS),
        (LOAD, Phase.LOAD, Part.WEIGHTS),
        ([*TRAINER, *SETUP], Phase.SETUP, Part.WEIGHTS),
        ([*TRAINER, STEP, CALL, LAYER, *GATHER], Phase.FORWARD, Part.GATHERED_WEIGHTS),
        ([*TRAINER, STEP, CALL, *VISION], Phase.FORWARD, Part.ATTENTION),
        ([*TRAINER, *IMAGES], Phase.DATA, None),
    ],
)
def test_the_phase_and_what_was_being_made_are_told_by_the_frames(frames: Frames, phase: Phase, part: Part | None):
    found = place(frames)
    assert (found.phase, found.part) == (phase, part)


def test_the_vision_encoder_is_told_from_the_language_model():
    assert place([*TRAINER, STEP, CALL, *VISION]).is_in_vision
    assert not place([*TRAINER, STEP, CALL, LAYER, EAGER]).is_in_vision


def test_recomputing_is_part_of_backward():
    assert place([*TRAINER, STEP, *BACKWARD, RECOMPUTED, LAYER, CALL, MLP]).is_recomputed
    assert not place([*TRAINER, STEP, *BACKWARD]).is_recomputed


def test_the_users_frame_is_the_innermost_outside_of_packages():
    frame = place([*TRAINER, STEP, CALL, LAYER]).own_frame
    assert frame is not None
    assert (frame.file, frame.line, frame.function, frame.code) == (
        "/home/me/train.py",
        12,
        "<module>",
        "trainer.train()",
    )


def test_no_traceback_tells_nothing():
    assert place_of(frames_before(ERROR, 0)) == Place()
    text = f"{{'loss': 1}}\nsome words\n{ERROR}"
    assert place_of(frames_before(text, text.index(ERROR))) == Place()


def test_tracebacks_of_ipython_and_rich_are_read():
    call = "-> 2379         return input.softmax(dim)"
    old = f"{SITE}/torch/nn/functional.py in softmax(input, dim)\n   2378     if inplace:\n{call}\n\n{ERROR}"
    (frame,) = frames_before(old, old.index(ERROR))
    assert (frame.function, frame.code) == ("softmax", "return input.softmax(dim)")
    start = "Traceback (most recent call last)"
    new = f"{start}\nFile {SITE}/torch/_tensor.py:581, in Tensor.backward(self)\n--> 581 x()\n{ERROR}"
    (frame,) = frames_before(new, new.index(ERROR))
    assert (frame.line, frame.function) == (581, "backward")
    rich = f"╭ {start} ╮\n│ /home/me/train.py:12 in main        │\n│ ❱ 12 │   trainer.train()  │\n{ERROR}"
    (frame,) = frames_before(rich, rich.index(ERROR))
    assert (frame.file, frame.line, frame.function) == ("/home/me/train.py", 12, "main")


ALL = [[*TRAINER, STEP, CALL, *LOSS], [*TRAINER, *ADAMW], LOAD, [*TRAINER, *SAVE], [*TRAINER, STEP, *BACKWARD]]


@given(st.lists(st.sampled_from(ALL), min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_lines_of_several_ranks_may_come_in_any_order(tracebacks: list[Frames], order):
    """Every rank's own lines stay in order, as they do where each writes to one pipe."""
    queues = [traceback_of(frames, f"[rank{rank}]: ").splitlines() for rank, frames in enumerate(tracebacks)]
    mixed: list[str] = []
    while any(queues):
        queue = order.choice([queue for queue in queues if queue])
        mixed.append(queue.pop(0))
    text = "\n".join(mixed)
    for rank, frames in enumerate(tracebacks):
        start = text.index(f"[rank{rank}]: {ERROR}") + len(f"[rank{rank}]: ")
        assert place_of(frames_before(text, start)) == place(frames)

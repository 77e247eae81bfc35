"""In which phase of a run memory ran out, and on what, by the functions that a traceback names.

The names are those of torch, transformers, accelerate, DeepSpeed, peft and bitsandbytes. What stands around the rest
(saving, evaluation, loading) is looked for from the outermost frame on; within a training step the phase is the
innermost that is named, and what was being made is told by the last frames alone.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from vlmplan.diagnosis.frames import Frame, own_frame
from vlmplan.phase_names import BACKWARD, EVALUATION, FORWARD, GENERATION, INIT, LOAD, RESUME, SAVE, STEP

INNERMOST = 8
"""Frames that tell what was being made: a module's forward is three of torch's frames inside another's. A choice."""


class Phase(Enum):
    """A phase of a run. The value is what people read."""

    DATA = "reading samples"
    LOAD = "loading the model"
    SETUP = "setting up the engine"
    RESUME = "loading a checkpoint"
    FORWARD = "forward"
    LOSS = "the loss"
    BACKWARD = "backward"
    CLIPPING = "gradient clipping"
    STEP = "the optimizer's step"
    EVALUATION = "evaluation"
    GENERATION = "generation"
    SAVE = "saving"


class Part(Enum):
    """What was being made."""

    LOGITS = "logits"
    ATTENTION = "attention scores"
    MLP = "activations of an MLP"
    GATHERED_WEIGHTS = "gathered weights"
    GATHERED_LOGITS = "gathered logits"
    WEIGHTS = "weights"
    OPTIMIZER_STATES = "optimizer states"
    ACTIVATIONS = "activations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place at which memory ran out. None is what no traceback tells. ``is_recomputed``: in backward, the forward
    of a checkpointed layer."""

    phase: Phase | None = None
    part: Part | None = None
    is_in_vision: bool = False
    is_recomputed: bool = False
    is_of_16_bit_scores: bool | None = None
    """Of attention scores: False where they were being made in 32 bit, None where that depends on torch's version."""
    own_frame: Frame | None = None


AROUND: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    (
        Phase.RESUME,
        re.compile(r"_load_from_checkpoint|_load_best_model|load_checkpoint|_load_optimizer_and_scheduler|load_state"),
    ),
    (
        Phase.SAVE,
        re.compile(
            r"_save_checkpoint|_?save_model|save_checkpoint|save_pretrained|save_16bit_model|save_state|_save|get_state_dict"
            r"|_zero3_consolidated_16bit_state_dict|full_state_dict|safe_save_model_for_hf_trainer"
        ),
    ),
    (
        Phase.EVALUATION,
        re.compile(
            r"evaluate|_evaluate|evaluation_loop|prediction_loop|prediction_step|predict|validate|validation_step"
        ),
    ),
    (
        Phase.LOAD,
        re.compile(
            r"from_pretrained|_load_pretrained_model|_load_state_dict_into_meta_model|load_model|from_config|_from_config"
            r"|init_model|load_state_dict"
        ),
    ),
    (Phase.SETUP, re.compile(r"_prepare_deepspeed|prepare|initialize|get_peft_model|_configure_\w+|_wrap_model")),
)
STEP_FILES = re.compile(r"/optim/|deepspeed/runtime/(?:zero|bf16_optimizer|fp16)|accelerate/optimizer|bitsandbytes")
STEPS = re.compile(r"_?(?:take_model_)?step|_(?:multi|single)_tensor_\w+|_fused_\w+|_init_group|update_step")
MOVES_FILES = re.compile(r"torch/nn/modules/module\.py|bitsandbytes/nn/modules\.py")
MOVES = re.compile(r"_apply|convert|to|cuda|_quantize")
"""A model's weights go to the GPU, where bitsandbytes quantises them as they come."""
BACKWARD_FILES = re.compile(r"torch/_tensor\.py|torch/autograd|accelerat|deepspeed|torch/utils/checkpoint")
DATA_FILES = re.compile(
    r"image_processing|video_processing|processing_\w+\.py|utils/data/|vision_process|/PIL/|datasets/"
)
LOSSES = re.compile(
    r"\w*cross_entropy|\w*loss_function|ForCausalLMLoss|nll_loss|log_softmax|selective_log_softmax|_convert_to_fp32"
)
"""The last: accelerate's ``ConvertOutputsToFp32``, which makes what a model returns float32, logits above all."""
LOGITS_CODE = re.compile(
    r"logits\.float\(\)|\b(?:shift_)?logits\s*=|logits\.to\(|lm_head\(|output_layer\(|\bloss_fct\("
)
"""Models of transformers before 4.46 shifted logits in their own forward, and called ``loss_fct`` there."""
SCORES = re.compile(r"scaled_dot_product_attention|sdpa_attention_forward|eager_attention_forward|softmax")
SCORES_CODE = re.compile(r"softmax\(|torch\.(?:matmul|bmm)\((?:q|attn)|scaled_dot_product_attention\(")
MLP_CODE = re.compile(r"(?:gate|up|down)_proj\(|act_fn\(|activation_fn\(|\bfc[12]\(|\bw[123]\(")
GATHERS = re.compile(r"_?_?all_?gather\w*|fetch_sub_module|_allgather_params\w*|gather_partitions|_fetch_\w+")
GATHERS_OF_LOGITS = re.compile(
    r"nested_concat|torch_pad_and_concatenate|_nested_gather|pad_across_processes|nested_gather"
)
VISION = re.compile(r"(?i)visual|vision|image_features|patch_embed|\bvit\b|siglip|clip")
VISION_CODE = re.compile(r"scaled_dot_product_attention\(\s*(?:q, k, v\b|q\.unsqueeze)")
"""How Qwen2-VL's and Qwen2.5-VL's vision encoders called it, and no language model (transformers 4.45 and after;
assumed for the versions, seen in ms-swift#3456)."""
MODELS = re.compile(r"modeling_|/models/")


OF_PLAN = {
    LOAD: Phase.LOAD,
    INIT: Phase.SETUP,
    FORWARD: Phase.FORWARD,
    BACKWARD: Phase.BACKWARD,
    STEP: Phase.STEP,
    EVALUATION: Phase.EVALUATION,
    GENERATION: Phase.GENERATION,
    SAVE: Phase.SAVE,
    RESUME: Phase.RESUME,
}
"""A plan's phases by their names."""


def place_of_plan(phase: str | None) -> Place | None:
    """The place at which a rank of vlmplan's own trainer says that it was; None for any other message."""
    return None if phase is None else Place(phase=OF_PLAN.get(phase))


def place_of(frames: Sequence[Frame]) -> Place:
    """What a traceback's frames, outermost first, tell."""
    if not frames:
        return Place()
    phase = _around(frames) or _of_a_step(frames)
    inner = frames[-INNERMOST:]
    return Place(
        phase=phase,
        part=_part(inner, phase),
        is_in_vision=any(_is_of_vision(frame) for frame in frames),
        is_recomputed=phase is Phase.BACKWARD and any(frame.function == "forward" for frame in inner),
        is_of_16_bit_scores=False if any("dtype=torch.float32" in frame.code for frame in inner) else None,
        own_frame=own_frame(list(frames)),
    )


def _is_of_vision(frame: Frame) -> bool:
    is_named = MODELS.search(frame.file) is not None and VISION.search(f"{frame.function} {frame.code}") is not None
    return is_named or VISION_CODE.search(frame.code) is not None


def _around(frames: Sequence[Frame]) -> Phase | None:
    for number, frame in enumerate(frames):
        for phase, names in AROUND:
            if names.fullmatch(frame.function) and not _is_of_training(phase, frame):
                is_generating = any(inner.function == "generate" for inner in frames[number:])
                return Phase.GENERATION if phase is Phase.EVALUATION and is_generating else phase
    if any(frame.function == "generate" for frame in frames):
        return Phase.GENERATION
    if any(MOVES.fullmatch(frame.function) and MOVES_FILES.search(frame.file) for frame in frames[-INNERMOST:]):
        return Phase.LOAD
    return Phase.DATA if any(DATA_FILES.search(frame.file) for frame in frames[-3:]) else None


def _is_of_training(phase: Phase, frame: Frame) -> bool:
    """Names that mean something else elsewhere: ``initialize`` and ``prepare`` are the engines' in their own files."""
    is_common = frame.function in ("initialize", "prepare")
    return phase is Phase.SETUP and is_common and re.search(r"deepspeed|accelerat", frame.file) is None


def _of_a_step(frames: Sequence[Frame]) -> Phase | None:
    for frame in frames:
        if frame.function.startswith("clip_grad"):
            return Phase.CLIPPING
        if STEPS.fullmatch(frame.function) and STEP_FILES.search(frame.file):
            return Phase.STEP
        if frame.function == "backward" and BACKWARD_FILES.search(frame.file):
            return Phase.BACKWARD
    if _makes_logits(frames[-INNERMOST:]):
        return Phase.LOSS
    is_in_model = any(frame.function == "forward" or MODELS.search(frame.file) for frame in frames)
    return Phase.FORWARD if is_in_model else None


def _makes_logits(frames: Sequence[Frame]) -> bool:
    """Whether the last call into a model's own file, or one after it, is of the loss or makes logits."""
    for frame in reversed(frames):
        if LOSSES.fullmatch(frame.function) or LOGITS_CODE.search(frame.code):
            return True
        if MODELS.search(frame.file):
            return False
    return False


def _part(inner: Sequence[Frame], phase: Phase | None) -> Part | None:
    for frame in reversed(inner):
        if GATHERS_OF_LOGITS.fullmatch(frame.function) and phase in (Phase.EVALUATION, Phase.GENERATION):
            return Part.GATHERED_LOGITS
        if GATHERS.fullmatch(frame.function):
            return Part.GATHERED_WEIGHTS
    if phase in (Phase.LOAD, Phase.SETUP, Phase.RESUME, Phase.SAVE):
        return Part.WEIGHTS
    if phase is Phase.STEP:
        return Part.OPTIMIZER_STATES
    if phase in (Phase.DATA, Phase.CLIPPING):
        return None
    if _makes_logits(inner):
        return Part.LOGITS
    for frame in reversed(inner):
        if SCORES.fullmatch(frame.function) or SCORES_CODE.search(frame.code):
            return Part.ATTENTION
        if MLP_CODE.search(frame.code):
            return Part.MLP
    is_known = any(frame.function == "forward" for frame in inner)
    return Part.ACTIVATIONS if is_known else None

"""Steps of small Gemma 3n and FastVLM with whole vision towers, and what the planner's trees say. Needs no torch."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tape_probe import Predicted, predicted_step
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch, Model
from vlmplan.architecture.modules import Linear

IMAGE_TOKEN = 101
GEMMA_TEXT = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 10,
    "vocab_size": 200,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 100,
    "laurel_rank": 8,
    "num_kv_shared_layers": 5,
    "activation_sparsity_pattern": [0.95] * 2 + [0.0] * 8,
}
AUDIO = {"conf_num_hidden_layers": 2, "hidden_size": 64, "conf_num_attention_heads": 4}
GEMMA3N = {
    "model_type": "gemma3n",
    "text_config": GEMMA_TEXT,
    "vision_config": {"vocab_offset": 100, "vocab_size": 16},
    "audio_config": {**AUDIO, "vocab_offset": 116, "vocab_size": 16},
    "image_token_id": IMAGE_TOKEN,
    "audio_token_id": 118,
}
FAST_VLM = {
    "model_type": "fast_vlm",
    "text_config": {
        "model_type": "qwen2",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "vocab_size": 2000,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "image_token_index": IMAGE_TOKEN,
}
SMALL: Mapping[str, Mapping[str, Any]] = {"gemma3n": GEMMA3N, "fast_vlm": FAST_VLM}
FIRST_IMAGE = 4
PEAKS = ("forward_live", "forward_peak", "backward_peak")


class Case(NamedTuple):
    """One step. ``frozen`` are name prefixes; ``side`` is that of an image in pixels."""

    images_per_sample: int = 1
    micro_batch: int = 1
    num_tokens: int = 300
    checkpoints: bool = False
    attention: str = "sdpa"
    frozen: tuple[str, ...] = ()
    side: int = 768
    config: Mapping[str, Any] = GEMMA3N

    @property
    def batch(self) -> Batch:
        if not self.images_per_sample:
            return Batch(micro_batch=self.micro_batch, num_tokens=self.num_tokens)
        sides = {"height": self.side, "width": self.side}
        shape = image_shape(self.config, {"size": sides, "crop_size": sides}, width=640, height=480)
        return Batch(
            micro_batch=self.micro_batch,
            num_tokens=self.num_tokens,
            images_per_sample=self.images_per_sample,
            image=shape,
        )


TOWER, EMBEDDERS = "model.vision_tower", ("model.embed_vision", "model.embed_audio")
FAST = Case(config=FAST_VLM, side=256)
CASES: Mapping[str, Case] = {
    "text": Case(images_per_sample=0, micro_batch=2),
    "text, checkpoints": Case(images_per_sample=0, micro_batch=2, checkpoints=True),
    "an image": Case(),
    "an image, checkpoints": Case(checkpoints=True),
    "an image, eager": Case(attention="eager"),
    "two images": Case(images_per_sample=2, num_tokens=600),
    "two samples": Case(micro_batch=2, checkpoints=True),
    "small images": Case(images_per_sample=2, num_tokens=600, side=256),
    "frozen tower": Case(micro_batch=2, frozen=(TOWER,)),
    "frozen tower and embedders": Case(frozen=(TOWER, *EMBEDDERS), checkpoints=True),
    "FastVLM": FAST,
    "FastVLM, checkpoints": FAST._replace(checkpoints=True),
    "FastVLM, eager": FAST._replace(attention="eager"),
    "FastVLM, two images": FAST._replace(images_per_sample=2),
    "FastVLM, two samples": FAST._replace(micro_batch=2),
    "FastVLM, large images": FAST._replace(side=512),
    "FastVLM, text": FAST._replace(images_per_sample=0, micro_batch=2),
    "FastVLM, frozen tower": FAST._replace(frozen=(TOWER,), micro_batch=2),
    "FastVLM, frozen tower and projector": FAST._replace(
        frozen=(TOWER, "model.multi_modal_projector"), checkpoints=True
    ),
}


def predicted(case: Case) -> Predicted:
    """What the planner's tree takes for the step."""
    tree = build_model(case.config)
    for entry in tree.parameters():
        if case.frozen and entry.name.startswith(case.frozen):
            entry.parameter.requires_grad = False
    return predicted_step(tree, case.batch, checkpoints=case.checkpoints, implementation=case.attention)


def described(tree: Model) -> dict[str, Any]:
    """Parameters and Linears of a tree, as ``summary`` has them."""
    parameters = [(entry.name, entry.parameter.numel) for entry in tree.parameters()]
    return summary(parameters, {name for name, module in tree.named_modules() if isinstance(module, Linear)})


def summary(parameters: Iterable[tuple[str, int]], linears: Iterable[str]) -> dict[str, Any]:
    """How many parameters there are, and digests: of their names and sizes in order, and of the names of Linears."""
    parameters = list(parameters)
    lines = "".join(f"{name} {numel}\n" for name, numel in parameters)
    return {
        "num_params": sum(numel for _, numel in parameters),
        "parameters": hashlib.sha256(lines.encode()).hexdigest(),
        "linears": hashlib.sha256("\n".join(sorted(linears)).encode()).hexdigest(),
    }

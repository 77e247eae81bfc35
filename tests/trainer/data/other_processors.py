"""Processors of other families with small images, around the tiny tokenizer."""

import copy
from collections.abc import Callable
from typing import Any

from vlmplan_trainer.models.tiny import tiny_tokenizer

CHATML = """{% for message in messages %}<|im_start|>{{ message.role }}
{% for part in message.content %}{{ 'IMAGE' if part.type == 'image' else part.text }}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def tokenizer(*tokens: str, **named: str) -> Any:
    """A tokenizer with ``tokens``; ``named`` ones are attributes as well."""
    made = copy.deepcopy(tiny_tokenizer("qwen2_vl"))
    made.add_tokens([*tokens, *named.values()], special_tokens=True)
    for name, token in named.items():
        setattr(made, name, token)
        setattr(made, f"{name}_id", made.convert_tokens_to_ids(token))
    return made


def template(placeholder: str) -> str:
    return CHATML.replace("IMAGE", placeholder)


def llava() -> Any:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.llava.processing_llava import LlavaProcessor

    images = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    return LlavaProcessor(
        images, tokenizer("<image>"), patch_size=14, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, chat_template=template("<image>"),
    )  # fmt: skip


def llava_next() -> Any:
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor

    images = LlavaNextImageProcessorPil(
        size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28},
        image_grid_pinpoints=[[28, 56], [56, 28], [56, 56]],
    )  # fmt: skip
    return LlavaNextProcessor(
        images, tokenizer("<image>"), patch_size=14, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, chat_template=template("<image>"),
    )  # fmt: skip


def gemma3() -> Any:
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
    from transformers.models.gemma3.processing_gemma3 import Gemma3Processor

    images = Gemma3ImageProcessorPil(size={"height": 28, "width": 28})
    names = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    return Gemma3Processor(
        images, tokenizer(**names), image_seq_length=4, chat_template=template("<start_of_image>")
    )  # fmt: skip


def idefics3() -> Any:
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

    rows = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    images = Idefics3ImageProcessorPil(size={"longest_edge": 56}, max_image_size={"longest_edge": 28})
    made = tokenizer("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *rows)
    return Idefics3Processor(images, made, image_seq_len=4, chat_template=template("<image>"))


def internvl() -> Any:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
    from transformers.models.internvl.processing_internvl import InternVLProcessor

    class WithoutVideo(InternVLProcessor):
        """Videos need torchvision."""

        @classmethod
        def get_attributes(cls) -> list[str]:
            return ["image_processor", "tokenizer"]

    images = GotOcr2ImageProcessorPil(size={"height": 28, "width": 28}, min_patches=1, max_patches=4)
    names = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    made = tokenizer(**names, video_token="<video>")
    return WithoutVideo(images, made, image_seq_length=4, chat_template=template("<IMG_CONTEXT>"))


FAMILIES: dict[str, Callable[[], Any]] = {
    "llava": llava,
    "llava_next": llava_next,
    "gemma3": gemma3,
    "idefics3": idefics3,
    "internvl": internvl,
}

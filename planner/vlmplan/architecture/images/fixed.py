"""Models that resize every image to one square: the number of tokens does not depend on the image.

Follows transformers 5.23: ``BlipImageProcessor`` with ``Blip2Processor`` and ``InstructBlipProcessor``,
``Gemma3ImageProcessor`` with ``Gemma3Processor``, ``SiglipImageProcessor`` with ``PaliGemmaProcessor``,
``CLIPImageProcessor`` or ``LlavaImageProcessor`` with ``LlavaProcessor``, ``DeepseekVLImageProcessor`` with
``DeepseekVLProcessor``, ``JanusImageProcessor`` with ``JanusProcessor``, ``AriaImageProcessor`` with
``AriaProcessor``, and the sizes of ``GotOcr2Processor``.
Qwen-VL-Chat is remote code: ``QWenTokenizer`` in its tokenization_qwen.py and ``VisionTransformer`` in its visual.py.
"""

import math
from dataclasses import replace

from vlmplan.architecture.images.settings import Settings, count, cropped_sides, section, side, sides
from vlmplan.architecture.images.shape import Image, ImageShape
from vlmplan.errors import InputError, UnknownNameError

GEMMA3N_PIXELS, GEMMA3N_FEATURES, GEMMA3N_FEATURE_PIXELS = 768, 16, 16
"""The side of an image of Gemma 3n, rows and columns of what its tower returns, and pixels of a feature before that."""
FAST_VLM_PIXELS, FAST_VLM_FEATURE_PIXELS = 1024, 64
"""The side of an image of FastVLM as published, and of what becomes one of its features."""
ARIA_PIXELS, ARIA_LEAST_PIXELS, ARIA_TOKENS = 980, 336, 256
"""The side of an image of Aria, what its shorter side has at least before it is padded, and its tokens."""
GOT_STRIDE, GOT_TOKENS = 4, 256
"""Patches a side that become one feature of GOT-OCR 2, and tokens that its processor writes for an image."""
_HAS_CLASS_TOKEN = {"clip_vision_model": True, "siglip_vision_model": False}


def query_shape(image: Image) -> ImageShape:
    """BLIP-2 and InstructBLIP: a Q-Former turns the patches into ``num_query_tokens``, before the text."""
    vision = section(image.config, "vision_config")
    num_queries = count(image.config, "num_query_tokens", 32)
    height, width = sides(image.preprocessor, "size", side(vision, "image_size", 224))
    return _one_picture(
        num_placeholder_tokens=num_queries,
        width=width,
        height=height,
        patch_size=side(vision, "patch_size", 14),
    )


def gemma3_shape(image: Image) -> ImageShape:
    r"""Gemma 3: patches pooled to ``mm_tokens_per_image``.

    The processor writes ``\n\n<start_of_image> ... <end_of_image>\n\n``, and ``\n\n`` is one token of
    Gemma's vocabulary: four tokens more (three where a newline of the text before joins the first pair).
    Pan and scan stays off whatever preprocessor_config.json says, because ``Gemma3Processor`` passes
    ``do_pan_and_scan=False`` unless the caller asks.
    """
    vision = section(image.config, "vision_config")
    height, width = sides(image.preprocessor, "size", side(vision, "image_size", 896))
    return _one_picture(
        num_placeholder_tokens=count(image.config, "mm_tokens_per_image", 256),
        num_text_tokens=4,
        width=width,
        height=height,
        patch_size=side(vision, "patch_size", 14),
    )


def gemma3n_shape(image: Image) -> ImageShape:
    r"""Gemma 3n: features of every image averaged to 16 x 16, with as many text tokens around them as Gemma 3's.

    ``SiglipImageProcessor`` with ``Gemma3nProcessor``. Raises InputError for sides of which timm's MobileNetV5 does not
    make 16 x 16 features by averaging.
    """
    num_tokens = count(image.config, "vision_soft_tokens_per_image", GEMMA3N_FEATURES**2)
    height, width = sides(image.preprocessor, "size", GEMMA3N_PIXELS)
    step = GEMMA3N_FEATURES * GEMMA3N_FEATURE_PIXELS
    if num_tokens != GEMMA3N_FEATURES**2 or height % step or width % step:
        raise InputError(
            f"images of {width} x {height} pixels with {num_tokens} tokens each cannot be planned for gemma3n; its "
            f"tower makes {GEMMA3N_FEATURES**2} tokens of sides that are multiples of {step}"
        )
    return _one_picture(
        num_placeholder_tokens=num_tokens,
        num_text_tokens=4,
        width=width,
        height=height,
        patch_size=GEMMA3N_FEATURE_PIXELS,
    )


def paligemma_shape(image: Image) -> ImageShape:
    """PaliGemma: one token per patch; ``SiglipImageProcessor.image_seq_length`` repeats that number."""
    return _patch_per_token(image, patch_size=14)


def deepseek_vl_shape(image: Image) -> ImageShape:
    """DeepSeek-VL: one token per patch of the square that an image is padded to, which the ``num_image_tokens`` of
    processor_config.json repeat."""
    return _patch_per_token(image, patch_size=16)


def deepseek_vl_hybrid_shape(image: Image) -> ImageShape:
    """The same of the small one of both squares that an image is padded to; SAM's tower sees the large one.

    Raises InputError for a large square that this tower does not take.
    """
    pixels = side(section(image.config, "high_res_vision_config"), "image_size", 1024)
    asked = side(image.preprocessor, "high_res_size", 1024)
    if asked != pixels:
        raise InputError(
            f"preprocessor_config.json: high_res_size is {asked} x {asked}; the tower of config.json: "
            f"high_res_vision_config takes {pixels} x {pixels} pixels"
        )
    return deepseek_vl_shape(image)


def janus_shape(image: Image) -> ImageShape:
    """Janus: the same, between the two tokens that its processor writes around them."""
    return _patch_per_token(image, patch_size=16, image_size=384, num_text_tokens=2)


def _patch_per_token(image: Image, *, patch_size: int, image_size: int = 224, num_text_tokens: int = 0) -> ImageShape:
    vision = section(image.config, "vision_config")
    patch_size = side(vision, "patch_size", patch_size)
    height, width = sides(image.preprocessor, "size", side(vision, "image_size", image_size))
    num_patches = (height // patch_size) * (width // patch_size)
    return _one_picture(
        num_placeholder_tokens=num_patches,
        num_text_tokens=num_text_tokens,
        width=width,
        height=height,
        patch_size=patch_size,
    )


def got_ocr2_shape(image: Image) -> ImageShape:
    """GOT-OCR 2 and PP-Chart2Table: two strided convolutions leave a sixteenth of SAM's patches of the one square.

    ``crop_to_patches`` of preprocessor_config.json does not matter: ``GotOcr2Processor`` passes False unless it is
    asked otherwise (``images_kwargs``), and writes ``num_image_tokens``; those of PP-Chart2Table are written by its
    chat template. Raises InputError for a square that the tower does not take, or of another number of features.
    """
    vision = section(image.config, "vision_config")
    pixels, patch_size = side(vision, "image_size", 1024), side(vision, "patch_size", 16)
    asked = side(image.preprocessor, "size", pixels)
    num_features = math.ceil(pixels // patch_size / GOT_STRIDE) ** 2
    if asked != pixels or num_features != GOT_TOKENS:
        raise InputError(
            f"images of {asked} x {asked} pixels cannot be planned for a tower that takes {pixels} x {pixels}, "
            f"{num_features} features: its processor writes {GOT_TOKENS} tokens, one for each feature"
        )
    return _one_picture(num_placeholder_tokens=num_features, width=pixels, height=pixels, patch_size=patch_size)


def llava_shape(image: Image) -> ImageShape:
    """LLaVA 1.5: one token per patch of the resized and cropped square.

    The tower gives its class token (CLIP has one, SigLIP none) and the patches;
    ``vision_feature_select_strategy`` "default" drops the first of them, "full" keeps all.
    """
    return _cropped(image, image_size=336)


def fast_vlm_shape(image: Image) -> ImageShape:
    """FastVLM: one token per feature of the resized and cropped square, as large as ``patch_size`` of
    processor_config.json is in all published ones. Raises InputError for sides that it does not divide, of which the
    tower makes more features than ``LlavaProcessor`` writes tokens.
    """
    height, width = cropped_sides(image.preprocessor, FAST_VLM_PIXELS)
    if height % FAST_VLM_FEATURE_PIXELS or width % FAST_VLM_FEATURE_PIXELS:
        raise InputError(
            f"images of {width} x {height} pixels cannot be planned for fast_vlm; its tower makes a token of "
            f"{FAST_VLM_FEATURE_PIXELS} x {FAST_VLM_FEATURE_PIXELS} pixels, and sides have to be multiples of that"
        )
    num_features = (height // FAST_VLM_FEATURE_PIXELS) * (width // FAST_VLM_FEATURE_PIXELS)
    return _one_picture(
        num_placeholder_tokens=num_features, width=width, height=height, patch_size=FAST_VLM_FEATURE_PIXELS
    )


def video_llava_shape(image: Image) -> ImageShape:
    """Video-LLaVA: the same of smaller images."""
    return _cropped(image, image_size=224)


def _cropped(image: Image, *, image_size: int) -> ImageShape:
    vision = section(image.config, "vision_config")
    patch_size = side(vision, "patch_size", 14)
    height, width = cropped_sides(image.preprocessor, side(vision, "image_size", image_size))
    num_patches = (height // patch_size) * (width // patch_size)
    return _one_picture(
        num_placeholder_tokens=num_patches + num_extra_features(image.config, vision, "clip_vision_model"),
        width=width,
        height=height,
        patch_size=patch_size,
    )


def aria_shape(image: Image) -> ImageShape:
    """Aria: an image is padded to a square of ``ARIA_PIXELS`` whatever preprocessor_config.json says, as
    ``AriaProcessor`` passes that size and no crops unless the caller asks for others (``images_kwargs``); learned
    queries become tokens. Raises InputError for a tower whose patches have no number of queries, or another than the
    ``ARIA_TOKENS`` that the processor writes (``size_conversion``).
    """
    patch_size = side(section(image.config, "vision_config"), "patch_size", 32)
    num_patches = (ARIA_PIXELS // patch_size) ** 2
    queries = section(image.config, "projector_patch_to_query_dict") or {"1225": 128, "4900": ARIA_TOKENS}
    if count(queries, str(num_patches), 0) != ARIA_TOKENS:
        raise InputError(
            f"config.json: projector_patch_to_query_dict has to give {ARIA_TOKENS} queries to the {num_patches} "
            f"patches of an image of {ARIA_PIXELS} x {ARIA_PIXELS} pixels, as aria's processor makes images and tokens"
        )
    longest = max(image.width, image.height)
    shortest = max(int(min(image.width, image.height) * (ARIA_PIXELS / longest)), ARIA_LEAST_PIXELS)
    shape = _one_picture(
        num_placeholder_tokens=ARIA_TOKENS, width=ARIA_PIXELS, height=ARIA_PIXELS, patch_size=patch_size
    )
    # Patches that hold nothing but padding are masked.
    return replace(shape, has_padded_sequences=math.ceil(shortest / patch_size) < ARIA_PIXELS // patch_size)


def qwen_shape(image: Image) -> ImageShape:
    """Qwen-VL-Chat: 448 x 448 pixels, resampled to 256 queries.

    The text holds ``<img>``, 256 tokens that begin with the bytes of the image's path and are padded with
    ``<imgpad>`` (``IMG_TOKEN_SPAN``), and ``</img>``: the path costs nothing, the two tags do.
    """
    visual = section(image.config, "visual")
    pixels = side(visual, "image_size", 448)
    return _one_picture(
        num_placeholder_tokens=count(visual, "n_queries", 256),
        num_text_tokens=2,
        width=pixels,
        height=pixels,
        patch_size=side(visual, "patch_size", 14),
    )


def num_extra_features(config: Settings, vision: Settings, default_tower: str, strategy: str = "default") -> int:
    """Features of a LLaVA tile beyond one per patch: +1 for a class token, -1 for the one that is dropped.

    ``default_tower`` and ``strategy`` are the family's defaults. Source: ``get_image_features`` of
    ``LlavaModel``, ``LlavaNextModel`` and ``LlavaOnevisionModel``.
    Raises UnknownNameError for a tower or a strategy that is not known.
    """
    tower = str(vision.get("model_type") or default_tower)
    if tower not in _HAS_CLASS_TOKEN:
        raise UnknownNameError("vision tower", tower, _HAS_CLASS_TOKEN)
    strategy = str(config.get("vision_feature_select_strategy") or strategy)
    if strategy not in ("default", "full"):
        raise UnknownNameError("vision_feature_select_strategy", strategy, ("default", "full"))
    return int(_HAS_CLASS_TOKEN[tower]) - int(strategy == "default")


def _one_picture(
    *, num_placeholder_tokens: int, num_text_tokens: int = 0, width: int, height: int, patch_size: int
) -> ImageShape:
    return ImageShape(
        num_tokens=num_placeholder_tokens + num_text_tokens,
        num_placeholder_tokens=num_placeholder_tokens,
        num_vision_sequences=1,
        num_patch_columns=width // patch_size,
        num_patch_rows=height // patch_size,
        resized_width=width,
        resized_height=height,
    )

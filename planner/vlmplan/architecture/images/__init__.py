"""How an image of width x height pixels becomes vision-encoder input and language-model tokens.

One file per family of processors of transformers 5.23; each names the class and function it restates. Pure
arithmetic on the dictionaries of config.json and preprocessor_config.json: no pixels, no files.

    shape.py          ImageShape (the answer), Image (the question)
    settings.py       reading numbers from the two files; the rule for what they lack
    gemma4.py         a budget of pooled patches at the image's proportions, filled up: gemma4, gemma4_unified
    fixed.py          one square, whatever the image: blip-2, instructblip, gemma3, paligemma, llava, qwen
    smart_resize.py   native resolution within a pixel budget: Qwen2-VL to Qwen3-VL, GLM-4V, HyperCLOVA X Vision
    pixtral.py        native resolution below a longest edge: mistral3, llava with a Pixtral tower
    dynamic_tiles.py  tiles by aspect ratio plus a thumbnail: internvl, qianfan_ocr, ovis2, aya_vision, cohere2_vision
    idefics.py        idefics2 (quarters), idefics3 and smolvlm (tiles plus a thumbnail)
    anyres.py         tiles of the best pinpoint, unpadded, with newlines: llava_next(_video), llava_onevision
    phi4_multimodal.py  tiles over the image, filled up with white, and the whole of it: phi4_multimodal
    minicpmv.py       the whole image and slices at its proportions: minicpmv4_6, minicpmv4_7, minicpm_ocr
    mllama.py         tiles padded to a fixed number, seen through cross-attention

Functions named ``...shape`` take an ``Image`` and return an ``ImageShape``.
"""

# pyright: reportUnusedImport=false
from vlmplan.architecture.images.by_model import IMAGE_MODEL_TYPES, image_settings, image_shape, is_bounded_by_pixels
from vlmplan.architecture.images.shape import ImageShape

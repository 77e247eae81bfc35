"""Phi-4-multimodal against transformers: its parts, its steps with images and without, and what images become."""

import ast
import importlib.util
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli_calls import call, folder_of
from model_table import assert_counts_match_the_table, packaged_config
from tape_probe import predicted_step
from text_steps import assert_parameters_match
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Release
from vlmplan.engines.coordinator.gathered_weights import GatheredWeights, notify
from vlmplan.engines.coordinator.module_order import UNKNOWN_ORDER, SmallWeights
from vlmplan.engines.zero3_gathers import read_weights
from vlmplan.errors import InputError
from vlmplan.memory.blocks import BlockLog
from vlmplan.recipe.choices import LossKind
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.units import DType

ALIAS = "phi-4-multimodal"
IMAGE_TOKEN = 990
VISION = {
    "hidden_size": 192,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "image_token_id": IMAGE_TOKEN,
}
AUDIO = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_blocks": 2,
    "num_attention_heads": 4,
    "ext_pw_out_channel": 64,
    "depthwise_separable_out_channel": 64,
    "nemo_conv_channels": 32,
    "audio_token_id": 991,
}
CONFIG = {
    "model_type": "phi4_multimodal",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "pad_token_id": 0,
    "partial_rotary_factor": 0.75,
    "tie_word_embeddings": True,
    "vision_config": VISION,
    "audio_config": AUDIO,
}
OTHER_AUDIO = {**AUDIO, "time_reduction": 6, "bias_symmetric": True, "depthwise_multiplier": 2, "kernel_size": 5}
UNTIED = {**CONFIG, "tie_word_embeddings": False, "sliding_window": 64, "audio_config": OTHER_AUDIO}
ODD = {"image_size": 434, "crop_size": 434}
WIDE = {**CONFIG, "hidden_size": 1024, "num_hidden_layers": 1, "vision_config": {**VISION, "num_hidden_layers": 2}}
"""Its projection is as large as all else."""
TOWER = ("model.embed_tokens_extend.image_embed.img_processor",)
EXTENSION = ("model.embed_tokens_extend",)
SIZES = {"one tile": (448, 448), "side by side": (900, 300), "above": (400, 700), "square": (600, 800)}
PICTURES = [
    (448, 448),
    (449, 448),
    (600, 800),
    (900, 300),
    (2000, 300),
    (5000, 4000),
    (1344, 1344),
    (20, 30),
    (30, 440),
]


def test_counts_are_those_of_the_published_checkpoint():
    assert_counts_match_the_table(ALIAS)


WHOLE = pytest.param(packaged_config(ALIAS), marks=pytest.mark.sweep)


@pytest.mark.parametrize("config", [WHOLE, CONFIG, UNTIED], ids=[ALIAS, "small", "untied"])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


def laid_out(config, size, num_images):
    """A micro batch of two samples: the plan's, and transformers' inputs."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from vlmplan_trainer.probe import configuration
    from vlmplan_trainer.rehearse.batch import micro_batch
    from vlmplan_trainer.rehearse.samples import ImageSpec, Samples

    tile = config["vision_config"].get("crop_size", 448)
    image = image_shape(config, {"size": tile}, width=size[0], height=size[1])
    num_tokens = num_images * image.num_tokens + 40
    batch = Batch(micro_batch=2, num_tokens=num_tokens, images_per_sample=num_images, image=image)
    spec = ImageSpec(**{name: getattr(image, name) for name in ImageSpec.__slots__})
    samples = Samples(micro_batch=2, num_tokens=num_tokens, images_per_sample=num_images, image=spec)
    made = micro_batch(configuration(config), samples)
    values = {name: value.bfloat16() if value.is_floating_point() else value for name, value in made.values.items()}
    assert int((values["input_ids"] == IMAGE_TOKEN).sum()) == batch.num_images * image.num_placeholder_tokens
    assert torch.is_floating_point(values["image_attention_mask"])
    return batch, values, made.shapes


def step(config, size, *, num_images=1, **options):
    batch, values, shapes = laid_out(config, size, num_images)
    from family_checks import assert_step_matches

    assert_step_matches(config, batch, values, shapes, tolerance=0.002, **options)


def test_all_images_share_the_casts_of_the_projection_that_autocast_caches():
    batch, values, shapes = laid_out(WIDE, (448, 448), num_images=2)
    import torch

    from family_checks import real_model
    from torch_probe import measured_step

    measured = measured_step(
        lambda: real_model(WIDE, dtype=torch.float32), values, floats=shapes, autocast=torch.bfloat16
    )
    model = build_model(WIDE)
    for entry in model.parameters():
        entry.parameter.dtype = DType.FLOAT32
    cached, anew = (
        predicted_step(model, batch, autocast=DType.BFLOAT16, caches_casts=caches) for caches in (True, False)
    )
    assert cached.forward_live == pytest.approx(measured.forward_live, rel=0.002)
    assert cached.forward_peak == pytest.approx(measured.forward_peak, rel=0.002)
    assert anew.forward_live > 1.01 * measured.forward_live


@pytest.mark.one_in(12)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("frozen", [(), TOWER, EXTENSION], ids=["all", "no tower", "decoder"])
def test_a_step_keeps_and_peaks_as_in_transformers(frozen, checkpoints, size):
    step(CONFIG, size, frozen=frozen, checkpoints=checkpoints)


@pytest.mark.sweep
@pytest.mark.parametrize("checkpoints", [False, True])
def test_an_eager_step_with_two_images_keeps_and_peaks_as_in_transformers(checkpoints):
    step(CONFIG, SIZES["square"], num_images=2, attention="eager", checkpoints=checkpoints)


@pytest.mark.sweep
@pytest.mark.parametrize("changes", [{"feature_layer": -1}, {"feature_layer": 2}, {"image_size": 434}, ODD], ids=str)
def test_another_layer_and_an_odd_number_of_patches_keep_and_peak_as_in_transformers(changes):
    """A tower with an odd number of patches fills up their features; its positions are those of another size."""
    config = {**CONFIG, "vision_config": {**VISION, **changes}}
    step(config, SIZES["square"], checkpoints=True)


def test_text_alone_runs_without_the_towers():
    alone = predicted_step(CONFIG, Batch(micro_batch=1, num_tokens=64))
    assert alone.trace is not None
    assert not any(key.startswith(("vision", "audio")) for key in alone.trace.sections)


def test_the_audio_tower_freezes_with_the_vision_tower_and_what_is_around_both_is_the_projector():
    model = build_model(CONFIG)
    assert model.part_of("model.embed_tokens_extend.audio_embed.encoder.encoders.0.conv.glu") is Part.VISION
    assert model.part_of("model.embed_tokens_extend.image_embed.img_processor.head.probe") is Part.VISION
    assert model.part_of("model.embed_tokens_extend.image_embed.sub_img_feature_extensor") is Part.PROJECTOR
    assert model.part_of("model.embed_tokens_extend.audio_embed.up_proj_for_speech") is Part.PROJECTOR
    assert model.part_of("model.layers.0.mlp.down_proj") is Part.LANGUAGE


class Torchless:
    """Of the processor's class what its own functions call, by shapes alone."""

    def rescale_and_normalize(self, image, *settings):
        return image

    def resize(self, image, size, **settings):
        return image.new_empty(3, size.height, size.width)


@pytest.mark.parametrize("size", PICTURES, ids=str)
def test_images_become_what_transformers_processor_makes_of_them(size):
    """Its class without its base: the file wants torchvision."""
    torch = pytest.importorskip("torch")
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None:
        pytest.skip("needs transformers")
    source = Path(found.origin).parent / "models" / "phi4_multimodal" / "image_processing_phi4_multimodal.py"
    [kind] = [
        node
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and node.name == "Phi4MultimodalImageProcessor"
    ]
    methods = [
        node for node in kind.body if isinstance(node, ast.FunctionDef) and node.name not in ("__init__", "preprocess")
    ]
    for method in methods:
        method.returns = None
        for argument in method.args.args:
            argument.annotation = None
    drawing = SimpleNamespace(
        resize=lambda image, size: image.new_empty(3, *size),
        pad=lambda image, sides, fill: image.new_empty(3, image.shape[1] + sides[3], image.shape[2] + sides[2]),
    )
    space = {"torch": torch, "math": math, "tvF": drawing, "BatchFeature": lambda data, tensor_type: data}
    exec(compile(ast.Module(methods, []), str(source), "exec"), space)
    processor = type("Processor", (Torchless,), {method.name: space[method.name] for method in methods})()
    names = ("do_resize", "resample", "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std")
    made = processor._preprocess(
        [torch.empty(3, size[1], size[0])],
        **dict.fromkeys(names),
        size=SimpleNamespace(height=448, width=448),
        patch_size=14,
        dynamic_hd=36,
        return_tensors=None,
    )
    shape = image_shape(packaged_config(ALIAS), None, width=size[0], height=size[1])
    assert [shape.num_placeholder_tokens] == made["num_img_tokens"]
    assert tuple(made["image_pixel_values"].shape) == (1, shape.num_vision_sequences, 3, 448, 448)
    assert made["image_sizes"].tolist() == [[shape.resized_height, shape.resized_width]]
    assert shape.has_padded_sequences is bool((made["image_attention_mask"] == 0).any())


@pytest.mark.parametrize(
    ("settings", "size", "words"),
    [
        ({"size": {"height": 336, "width": 336}}, (448, 448), "not those of vision_config, 448 with 14"),
        ({"patch_size": 16}, (448, 448), "patches of 16 are not those"),
        ({}, (1, 400), "too narrow"),
        ({"size": 434}, (448, 448), "not those"),
    ],
)
def test_images_that_the_processor_or_the_model_would_refuse_are_refused(settings, size, words):
    with pytest.raises(InputError, match=words):
        image_shape(CONFIG, settings, width=size[0], height=size[1])


def test_tiles_of_another_number_of_features_than_the_processor_counts_are_refused():
    config = {**CONFIG, "vision_config": {**VISION, "crop_size": 434}}
    with pytest.raises(InputError, match="counts 16 x 16 features"):
        image_shape(config, {"size": 434}, width=448, height=448)


def test_values_that_no_tower_can_have_are_refused():
    for key, values, words in (
        ("vision_config", {**VISION, "feature_layer": 0}, "feature_layer is 0"),
        ("vision_config", {**VISION, "feature_layer": 5}, "from 1 to 4"),
        ("vision_config", {**VISION, "feature_layer": [1]}, "feature_layer"),
        ("audio_config", {**AUDIO, "time_reduction": 5}, "an even number"),
    ):
        with pytest.raises(InputError, match=words):
            build_model({**CONFIG, key: values})


def test_the_module_around_the_tower_is_released_behind_the_first_layer_where_only_adapters_are_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Under ZeRO-3, where embeddings are frozen and their results need gradients."""
    monkeypatch.chdir(tmp_path)
    setup = ("--method", "lora", "--zero-stage", "3", "--gpu", "t4:2", "--seq-len", "1024", "--json")
    model = ("--model", str(folder_of("phi", CONFIG)))
    plain, needing = (call("estimate", *model, *setup, *more).document for more in ((), ("--input-gradients", "peft")))
    assert [phase["name"] for phase in needing["phases"]] == [phase["name"] for phase in plain["phases"]]
    assert needing["peak_allocated_bytes"] >= plain["peak_allocated_bytes"]


def test_images_are_embedded_by_a_module_that_reads_two_weights_of_others():
    """``self.img_processor.embeddings.patch_embedding.weight.dtype`` and ``self.img_projection_up.bias``."""
    model = build_model(CONFIG)
    embedding = model.module("model.embed_tokens_extend.image_embed")
    read = {id(embedding.img_processor.embeddings.patch_embedding.weight), id(embedding.img_projection_up.bias)}
    image = image_shape(CONFIG, None, width=448, height=448)
    batch = Batch(micro_batch=1, num_tokens=image.num_tokens + 9, images_per_sample=1, image=image)
    trace = model.run(Tape(), batch, AttentionBackend(), loss=LossKind.FULL)
    found = [weights for weights in read_weights(trace).values() if {id(one) for one in weights} == read]
    assert len(found) == 1
    # In the first forward they are not the module's yet: what its tower's first module has used goes with that.
    log, zero = BlockLog(), replace(ZeroSettings(), **UNKNOWN_ORDER)
    gathered = GatheredWeights(trace=trace, zero=zero, num_ranks=2, sink=log, small=SmallWeights.COME_AND_GO)
    gathered.meets_reads = True
    patches = embedding.img_processor.embeddings.patch_embedding
    for run in trace.schedule:
        for event in trace.sections[run.key].forward:
            notify(gathered, event, run)
            if isinstance(event, Release) and event.module is patches:
                weight = gathered.module_of(patches, run).weights[0]
                assert weight.storage is None
                return
    raise AssertionError("patches are embedded")

"""Positions, projections and embeddings of patches, storage by storage, as transformers and torch make them."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2_vl
from transformers.models.qwen3_vl import configuration_qwen3_vl, modeling_qwen3_vl
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig

from model_table import packaged_config
from planned import model_files
from vlmplan.architecture.attention import tables_of_axes
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch
from vlmplan.architecture.storage_log import LoggingTape
from vlmplan.architecture.trace import Allocation, Fetch, Prefetch, Trace
from vlmplan.recipe.choices import LossKind
from vlmplan.units import DType

NUM_PATCHES, NUM_TOKENS = 12, 6
SIZES = {"hidden_size": 96, "num_attention_heads": 6, "num_hidden_layers": 2}
TEXT = {**SIZES, "head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
SECTIONS = {"mrope_section": [4, 2, 2]}


class Storages(TorchDispatchMode):
    """Bytes of every new storage, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {value.untyped_storage().data_ptr() for value in args if isinstance(value, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in known:
            self.made.append(result.untyped_storage().nbytes())
        return result


def of_patches() -> tuple[Any, torch.Tensor]:
    config = Qwen3VLVisionConfig(hidden_size=96, num_heads=4)
    return modeling_qwen3_vl.Qwen3VLVisionRotaryEmbedding(config), torch.ones(2, NUM_PATCHES, dtype=torch.long).T


def of_sections() -> tuple[Any, torch.Tensor]:
    config = qwen2_vl.Qwen2VLTextConfig(**{**TEXT, "rope_parameters": TEXT["rope_parameters"] | SECTIONS})
    return qwen2_vl.Qwen2VLRotaryEmbedding(config), torch.ones(3, 2, NUM_TOKENS, dtype=torch.long)


def of_interleaved() -> tuple[Any, torch.Tensor]:
    config = configuration_qwen3_vl.Qwen3VLTextConfig(**{**TEXT, "rope_parameters": TEXT["rope_parameters"] | SECTIONS})
    return modeling_qwen3_vl.Qwen3VLTextRotaryEmbedding(config), torch.ones(3, 2, NUM_TOKENS, dtype=torch.long)


TOKENS = (2, 1, NUM_TOKENS, 16)
HALF = (2, 1, NUM_TOKENS, 8)


@pytest.mark.parametrize(
    ("real", "arguments", "joined"),
    [
        (of_patches, ((NUM_PATCHES, 2, 6), (NUM_PATCHES, 24), DType.FLOAT32), (NUM_PATCHES, 12)),
        (of_sections, ((3, *HALF), TOKENS, DType.BFLOAT16), HALF),
        (of_interleaved, ((3, *HALF), TOKENS, DType.BFLOAT16), ()),
    ],
    ids=["patches", "axes in sections", "axes that take turns"],
)
def test_tables_of_axes_are_made_as_in_transformers(
    real: Callable[[], Any], arguments: tuple[Any, ...], joined: tuple[int, ...]
):
    module, positions = real()
    dtype = torch.float32 if arguments[2] is DType.FLOAT32 else torch.bfloat16
    of_dtype = torch.ones(1, dtype=dtype)
    with Storages() as storages:
        module(of_dtype, positions)
    tape = LoggingTape(follows_weights=False)
    with tape.section("positions"):
        tables_of_axes(tape, *arguments, joined=joined)
    events = tape.trace().sections["positions"].forward
    assert [event.num_bytes for event in events if isinstance(event, Allocation)] == storages.made


def traced(alias: str) -> tuple[Any, Trace]:
    files = model_files(alias)
    image = image_shape(files.config, files.preprocessor, width=64, height=64)
    model = build_model(packaged_config(alias))
    batch = Batch(micro_batch=1, num_tokens=64, images_per_sample=1, image=image)
    return model, model.run(LoggingTape(), batch, AttentionBackend(), loss=LossKind.FULL)


def test_a_gradient_of_fused_projections_is_stacked_and_copied_into_rows():
    module = qwen2_vl.VisionAttention(qwen2_vl.Qwen2VLVisionConfig(embed_dim=96, num_heads=4)).bfloat16()
    module.config._attn_implementation = "sdpa"
    tables = torch.ones(NUM_PATCHES, 24)
    out = module(torch.ones(NUM_PATCHES, 96).bfloat16(), torch.tensor([0, NUM_PATCHES]), (tables, tables))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        out.sum().backward()
    copied = [event.input_shapes[0] for event in profiled.events() if event.name == "aten::clone"]
    assert copied.count([NUM_PATCHES, 3, 4, 24]) == 1
    _, trace = traced("qwen2-vl-2b")
    width, num_patches = 1280, 4 * 4
    made = [one.num_bytes for one in trace.sections["vision.0"].backward if isinstance(one, Allocation)]
    assert made.count(3 * width * num_patches * DType.BFLOAT16.num_bytes) == 2


def test_zero_3_gathers_the_convolution_for_the_module_that_reads_it_and_prefetches_for_that_of_positions():
    model, trace = traced("qwen3-vl-2b")
    names = {id(module): name for name, module in model.named_modules()}
    events = [one for one in trace.sections["vision.embedding"].forward if isinstance(one, Fetch | Prefetch)]
    assert isinstance(events[-1], Prefetch)
    patches, convolution, positions = [one.module for one in events if isinstance(one, Fetch)]
    assert id(patches) not in names
    assert set(patches.parameters_by_name.values()) == set(convolution.parameters_by_name.values())
    assert [names[id(one)] for one in (convolution, positions)] == [
        "model.visual.patch_embed.proj",
        "model.visual.pos_embed",
    ]

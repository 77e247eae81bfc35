import importlib.util
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub_server import isolated_cache
from model_table import packaged_config
from tape_probe import Predicted, predicted_step
from vlmplan import estimate as estimate_module
from vlmplan.answers.estimate import document
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families import build_model
from vlmplan.architecture.generic.layer_bytes import UNCORRECTED, LayerBytes, RehearsedLayers, TokenBytes
from vlmplan.architecture.generic.layout import (
    LAYOUT_SCHEMA,
    LaidOutModule,
    ModelLayout,
    ModuleKind,
    inputs_beside_text,
    is_attention,
    layout_from_json,
)
from vlmplan.architecture.generic.model import GenericModel, build_generic, generic_notes, has_attention
from vlmplan.architecture.model import Batch, Model, Part
from vlmplan.architecture.modules import Linear, Stack
from vlmplan.architecture.packed_weight import Linear4bit
from vlmplan.architecture.prepare import prepared_model
from vlmplan.architecture.storage_log import LoggingTape
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import GradientReady, GradientTaken
from vlmplan.catalog import load_catalog
from vlmplan.errors import InputError
from vlmplan.estimation import estimate
from vlmplan.hardware import Cluster, Node
from vlmplan.models import context_length, find_model, takes_images
from vlmplan.models import probe as model_probe
from vlmplan.models.description import with_layout
from vlmplan.models.tree import ProbedModelFiles, model_tree
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method
from vlmplan.rehearsal.images import with_images
from vlmplan.request import WorkloadRequest
from vlmplan.request.samples import workload_of
from vlmplan.sample_images import sample_image
from vlmplan.timing import step_flops
from vlmplan.workload import ModelFiles, Workload

BATCH = Batch(micro_batch=2, num_tokens=256)
BASE: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FULL = ["full_attention"] * 6
UNKNOWN: dict[str, dict[str, Any]] = {
    "cohere2": {},
    "deepseek_v3": {
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 256,
        "first_k_dense_replace": 1,
        "n_group": 2,
        "topk_group": 1,
        "num_key_value_heads": 8,
        "q_lora_rank": 128,
        "kv_lora_rank": 64,
        "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 64,
        "v_head_dim": 64,
    },
    "exaone4": {"sliding_window": None, "layer_types": FULL},
    "gpt_neox": {},
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 64, "layer_types": FULL},
    "granite": {},
    "olmo": {},
    "olmo2": {},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "phi": {},
    "smollm3": {},
    "stablelm": {},
    "starcoder2": {},
}
"""Small models of types without a family, with several kinds of layers among them."""


@pytest.fixture(scope="module")
def probe() -> ModuleType:
    pytest.importorskip("transformers")
    path = model_probe.probe_path(Path(model_probe.__file__).parents[1])
    spec = importlib.util.spec_from_file_location("probe_of_models", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def probed(probe: ModuleType, config: dict[str, Any]) -> ModelLayout:
    """The layout as it comes through JSON."""
    return layout_from_json(json.loads(json.dumps(probe.layout(config))))


def unknown(model_type: str, **changes: object) -> dict[str, Any]:
    return {"model_type": model_type, **BASE, **UNKNOWN.get(model_type, {}), **changes}


def listed(model: Model) -> list[tuple[str, int, Part]]:
    return [(entry.name, entry.parameter.numel, entry.part) for entry in model.parameters()]


def linear_names(model: Model) -> set[str]:
    return {name for name, module in model.named_modules() if isinstance(module, Linear)}


def sums_by_part(model: Model) -> Counter[Part]:
    counts: Counter[Part] = Counter()
    for entry in model.parameters():
        counts[entry.part] += entry.parameter.numel
    return counts


def flops(predicted: Predicted) -> int:
    assert predicted.trace is not None
    return step_flops(predicted.trace)


def weights_without_gradient(model: Model, *, checkpoints: bool) -> list[str]:
    """Trained weights of the language model that a step gives no gradient."""
    trace = predicted_step(model, BATCH, checkpoints=checkpoints).trace
    assert trace is not None
    events = [event for _, section in trace.backward() for event in section.backward]
    ready = {id(event.parameter) for event in events if isinstance(event, GradientReady)}
    entries = [entry for entry in model.parameters() if entry.parameter.requires_grad and entry.part is Part.LANGUAGE]
    return [entry.name for entry in entries if id(entry.parameter) not in ready]


# A described family, taken as if it were not


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("is_tied", [False, True])
def test_a_described_decoder_has_the_same_parameters_when_it_is_looked_up(
    probe: ModuleType, model_type: str, is_tied: bool
):
    config = unknown(model_type, tie_word_embeddings=is_tied)
    known, generic = build_model(config), build_generic(probed(probe, config))
    assert listed(generic) == listed(known)
    assert linear_names(generic) == linear_names(known)
    assert generic.ties_weights is is_tied
    assert set(generic.attention_linears) == set(known.attention_linears)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_described_decoder_has_nearly_the_same_peaks_when_it_is_looked_up(
    probe: ModuleType, model_type: str, checkpoints: bool
):
    config = unknown(model_type, sliding_window=None)
    known = predicted_step(build_model(config), BATCH, checkpoints=checkpoints)
    generic = predicted_step(build_generic(probed(probe, config)), BATCH, checkpoints=checkpoints)
    for name in ("forward_live", "forward_peak", "backward_peak"):
        assert getattr(generic, name) == pytest.approx(getattr(known, name), rel=0.02)
    assert flops(generic) == flops(known)


@pytest.mark.parametrize("model_type", ["gemma2", "gpt2", "mixtral", "opt", "phi3"])
def test_other_described_decoders_have_roughly_the_same_peaks_when_they_are_looked_up(
    probe: ModuleType, model_type: str
):
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout", "attention_dropout"), 0.0)
    config = unknown(model_type, n_embd=512, n_layer=6, n_head=8, head_dim=64, ffn_dim=2048, **dropouts)
    known, generic = build_model(config), build_generic(probed(probe, config))
    assert listed(generic) == listed(known)
    expected, found = predicted_step(known, BATCH), predicted_step(generic, BATCH)
    assert found.backward_peak == pytest.approx(expected.backward_peak, rel=0.25)
    assert flops(found) == pytest.approx(flops(expected), rel=0.02)


@pytest.mark.parametrize(
    "alias",
    [
        *("qwen2-vl-2b", "qwen2.5-vl-3b", "qwen3-vl-2b", "llava-1.5-7b", "llava-v1.6-mistral-7b", "internvl2.5-2b"),
        *("gemma-3-4b", "smolvlm-256m", "paligemma2-3b", "llama-3.2-11b-vision", "pixtral-12b", "glm-4.1v-9b"),
    ],
)
def test_parts_of_described_vision_models_are_the_same_when_they_are_looked_up(probe: ModuleType, alias: str):
    config = packaged_config(alias)
    assert sums_by_part(build_generic(probed(probe, config))) == sums_by_part(build_model(config))


# Real types without a family


@pytest.mark.parametrize("model_type", UNKNOWN)
def test_parameters_and_linears_of_an_unknown_type_are_those_of_transformers(probe: ModuleType, model_type: str):
    import torch

    from family_checks import real_model

    config = unknown(model_type)
    with torch.device("meta"):
        real = real_model(config, attention="eager")
    generic = build_generic(probed(probe, config))
    expected = [(name, parameter.numel()) for name, parameter in real.named_parameters()]
    assert [(name, numel) for name, numel, _ in listed(generic)] == expected
    assert linear_names(generic) == {n for n, module in real.named_modules() if isinstance(module, torch.nn.Linear)}


@pytest.mark.parametrize("model_type", UNKNOWN)
@pytest.mark.parametrize("checkpoints", [False, True])
def test_every_weight_of_an_unknown_type_gets_its_gradient_and_nothing_stays(
    probe: ModuleType, model_type: str, checkpoints: bool
):
    model = build_generic(probed(probe, unknown(model_type)))
    assert weights_without_gradient(model, checkpoints=checkpoints) == []
    assert predicted_step(model, BATCH, checkpoints=checkpoints).end_live == 0


@pytest.mark.one_in(11)
@pytest.mark.parametrize(
    "model_type",
    ["cohere2", "exaone4", "gpt_neox", "granite", "olmo", "olmo2", "olmoe", "phi", "smollm3", "starcoder2"],
)
@pytest.mark.parametrize("checkpoints", [False, True])
def test_peaks_of_an_unknown_type_are_roughly_those_of_a_real_step(
    probe: ModuleType, model_type: str, checkpoints: bool
):
    from family_checks import real_model, switch_checkpointing, text_inputs
    from torch_probe import measured_step

    config = unknown(model_type)

    def build() -> Any:
        return switch_checkpointing(real_model(config), on=checkpoints)

    measured = measured_step(build, text_inputs(BATCH))
    predicted = predicted_step(build_generic(probed(probe, config)), BATCH, checkpoints=checkpoints)
    for name in ("forward_live", "forward_peak", "backward_peak"):
        assert getattr(predicted, name) == pytest.approx(getattr(measured, name), rel=0.17), name


@pytest.mark.parametrize("model_type", UNKNOWN)
def test_every_linear_of_an_unknown_type_runs_once_over_every_token(probe: ModuleType, model_type: str):
    layout = probed(probe, unknown(model_type))
    model = build_generic(layout)
    trace = predicted_step(model, BATCH).trace
    assert trace is not None
    num_tokens = BATCH.micro_batch * BATCH.num_tokens
    linears = [
        (module.in_features, module.out_features) for _, module in model.named_modules() if isinstance(module, Linear)
    ]
    expected = sum(2 * num_tokens * inner * outer for inner, outer in linears)
    matrices = [shape for name, shape in layout.shapes.items() if len(shape) == 3]
    expected += sum(2 * num_tokens * 2 * rows * columns for _, rows, columns in matrices)  # two experts per token
    attention = sum(section.forward_work.attention_flops for _, section in trace.forward())
    found = sum(section.forward_work.flops for _, section in trace.forward()) - attention
    if "sdpa" in layout.attention:
        assert found == expected
        assert attention > 0
    else:
        scores = 6 * 2 * 2 * BATCH.micro_batch * 8 * BATCH.num_tokens**2 * 64
        assert found == expected + scores


def test_a_model_without_attention_that_is_recognised_says_so():
    hidden = [
        [m.name.replace(".attn", ".mixer"), m.class_name.replace("Attention", "Mixer"), m.kind.value]
        for m in decoder_layout().modules
    ]
    shapes = [(name.replace(".attn", ".mixer"), list(shape)) for name, shape in decoder_layout().shapes.items()]
    assert has_attention(build_generic(decoder_layout()))
    layout = decoder_layout(modules=hidden, parameters=shapes)
    assert not has_attention(build_generic(layout))
    assert any("No attention was recognised" in note for note in generic_notes(layout, "foo"))


def test_latent_attention_runs_over_the_latents_widths(probe: ModuleType):
    model = build_generic(probed(probe, unknown("deepseek_v3")))
    kinds = next(stack for _, stack in model.stacks()).kinds
    assert len(kinds) == 2  # the first layer is dense
    assert {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"} <= set(model.attention_linears)


def test_layers_that_keep_states_are_counted_and_estimated_only_with_what_was_rehearsed(probe: ModuleType):
    config = {"model_type": "xlstm", "hidden_size": 256, "num_hidden_layers": 2}
    layout = probed(probe, config)
    model = build_generic(layout)
    assert sum(numel for _, numel, _ in listed(model)) == sum(math.prod(shape) for shape in layout.shapes.values())
    with pytest.raises(
        InputError, match="layers of xLSTMBackend and xLSTMFeedForward, whose memory is known from a rehearsal alone"
    ):
        predicted_step(model, BATCH)
    plain = predicted_step(build_generic(layout, UNCORRECTED), BATCH)
    kept, passing = TokenBytes(per_token=70_000.0, per_pair=0.0), TokenBytes(per_token=300_000.0, per_pair=11.0)
    rehearsed = RehearsedLayers(kinds=[LayerBytes(kept=kept, passing=passing)])
    found = predicted_step(build_generic(layout, rehearsed), BATCH)
    tokens = BATCH.micro_batch * BATCH.num_tokens
    assert found.forward_live - plain.forward_live == 2 * 70_000 * tokens
    assert found.end_live == plain.end_live == 0
    last = tokens * (300_000 + 11 * BATCH.num_tokens)
    assert plain.backward_peak < found.backward_peak <= plain.backward_peak + 2 * 70_000 * tokens + last


def test_kept_bytes_of_a_checkpointed_layer_are_there_while_it_runs_again_and_not_between(probe: ModuleType):
    config = unknown("starcoder2")
    layout = probed(probe, config)
    kept = TokenBytes(per_token=70_000.0, per_pair=0.0)
    rehearsed = RehearsedLayers(kinds=[LayerBytes(kept=kept, passing=TokenBytes(per_token=0.0, per_pair=0.0))])
    plain = predicted_step(build_generic(layout, UNCORRECTED), BATCH, checkpoints=True)
    found = predicted_step(build_generic(layout, rehearsed), BATCH, checkpoints=True)
    tokens = BATCH.micro_batch * BATCH.num_tokens
    assert found.forward_live == plain.forward_live
    assert 0 < found.backward_peak - plain.backward_peak <= 70_000 * tokens


@pytest.mark.parametrize(
    ("config", "kind", "part"),
    [
        ({"model_type": "nonsense"}, "unknown", "no model of model_type 'nonsense'"),
        ({"model_type": "udop"}, "unsupported", "an encoder and a decoder"),
        ({"model_type": "clip"}, "unsupported", "no language model"),
        ({"model_type": "pi0"}, "unsupported", "no token embedding and output head"),
    ],
)
def test_what_is_no_language_model_is_refused(probe: ModuleType, config: dict[str, Any], kind: str, part: str):
    with pytest.raises(probe.RefusedModelError, match=part) as caught:
        probe.layout(config)
    assert caught.value.kind == kind


def test_infinity_comes_through_json(probe: ModuleType):
    assert probe.with_floats({"a": [0.0, {"__float__": "Infinity"}], "b": {"c": 1}}) == {
        "a": [0.0, math.inf],
        "b": {"c": 1},
    }


def test_code_that_a_checkpoint_brings_along_is_not_looked_at(probe: ModuleType):
    config = unknown("olmo", auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"})
    assert probe.layout(config)["class"] == "OlmoForCausalLM"


# The whole way, in a process of its own


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("xmod")
    (folder / "config.json").write_text(json.dumps(unknown("xmod")), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def traced_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def traced_files(traced: Path, traced_cache: Path) -> ProbedModelFiles:
    """Looked up in a process of its own, which leaves what it found in ``traced_cache``."""
    pytest.importorskip("transformers")
    with pytest.MonkeyPatch.context() as patch:
        isolated_cache(patch, traced_cache)
        found = find_model(str(traced))
    assert isinstance(found, ProbedModelFiles)
    return found


@pytest.mark.sweep
def test_an_unknown_type_is_looked_up_with_notes_on_what_is_generic(traced_files: ProbedModelFiles):
    (note,) = traced_files.notes
    assert "vlmplan does not describe xmod" in note
    assert "parameters and Linears are exact" in note
    assert "generic decoder" in note
    assert context_length(traced_files) == 2048
    assert not takes_images(traced_files)


@pytest.mark.sweep
def test_what_was_looked_up_once_is_kept_until_transformers_changes(
    traced: Path, traced_files: ProbedModelFiles, traced_cache: Path, monkeypatch: pytest.MonkeyPatch
):
    isolated_cache(monkeypatch, traced_cache)
    calls: list[object] = []

    def no_process(config: object) -> dict[str, Any]:
        calls.append(config)
        return {"error": "refused", "message": "asked again"}

    monkeypatch.setattr(model_probe, "_answer", no_process)
    again = find_model(str(traced))
    assert isinstance(again, ProbedModelFiles)
    assert again.layout.shapes == traced_files.layout.shapes
    assert calls == []
    monkeypatch.setattr(model_probe, "version", lambda name: "99")
    with pytest.raises(InputError, match="asked again"):
        find_model(str(traced))


@pytest.mark.sweep
def test_each_tree_is_a_new_one(traced_files: ProbedModelFiles):
    first, second = model_tree(traced_files), model_tree(traced_files)
    assert not {id(entry.parameter) for entry in first.parameters()} & {
        id(entry.parameter) for entry in second.parameters()
    }


@pytest.mark.sweep
@pytest.mark.parametrize("method", list(Method))
@pytest.mark.parametrize("zero_stage", [None, 0, 1, 2, 3])
def test_an_unknown_type_is_estimated_under_every_engine(
    traced_files: ProbedModelFiles, method: Method, zero_stage: int | None
):
    cluster = Cluster(node=Node(gpu=load_catalog().gpu("rtx-4090"), num_gpus=1 if zero_stage is None else 2))
    recipe = Recipe(method=method, zero_stage=zero_stage)
    found = estimate(Workload(model=traced_files, seq_len=256), recipe, cluster)
    shapes = traced_files.layout.shapes.values()
    adapters = found.num_params - sum(math.prod(shape) for shape in shapes)
    widths = 6 * ((512 + 512) * 4 + (512 + 1408) * 2 + (512 + 256) * 2) + (512 + 512)
    assert adapters == (16 * widths if recipe.trains_adapters else 0)
    assert found.num_trainable_params == (adapters or found.num_params)
    assert found.peak_allocated_bytes > 0
    assert list(traced_files.notes) == document(found)["notes"]


@pytest.mark.sweep
def test_images_of_an_unknown_type_are_refused(traced_files: ProbedModelFiles):
    with pytest.raises(InputError, match="takes no images"):
        sample_image(Workload(model=traced_files, images_per_sample=1))


@pytest.mark.sweep
def test_the_estimate_itself_asks_nobody(traced_files: ProbedModelFiles, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model_probe.subprocess, "run", lambda *args, **kwargs: pytest.fail("a process was started"))
    prepared_model(model_tree(traced_files), Recipe())
    assert not hasattr(estimate_module, "model_probe")


# Layouts written by hand: no transformers needed


def decoder_layout(
    *, num_layers: int = 3, width: int = 2 * 3 * 5, inner: int = 7 * 11, vocab: int = 13 * 17, **changes: object
) -> ModelLayout:
    """A decoder of ``num_layers`` equal layers with one fused projection for q, k and v and a plain MLP."""
    modules: list[tuple[str, str, str]] = [("", "FooForCausalLM", ""), ("model", "FooModel", "")]
    shapes: list[tuple[str, list[int]]] = []

    def leaf(name: str, kind: str, class_name: str, *shape: int) -> None:
        modules.append((name, class_name, kind))
        shapes.append((f"{name}.weight", list(shape)))

    leaf("model.embed", "embedding", "Embedding", vocab, width)
    modules.append(("model.layers", "ModuleList", "stack"))
    for index in range(num_layers):
        layer = f"model.layers.{index}"
        modules.append((layer, "FooDecoderLayer", ""))
        leaf(f"{layer}.norm_1", "norm", "FooRMSNorm", width)
        modules.append((f"{layer}.attn", "FooAttention", ""))
        leaf(f"{layer}.attn.qkv", "linear", "Linear", 3 * width, width)
        leaf(f"{layer}.attn.out", "linear", "Linear", width, width)
        leaf(f"{layer}.norm_2", "norm", "FooRMSNorm", width)
        modules.append((f"{layer}.mlp", "FooMLP", ""))
        leaf(f"{layer}.mlp.up", "linear", "Linear", inner, width)
        leaf(f"{layer}.mlp.down", "linear", "Linear", width, inner)
    leaf("model.norm", "norm", "FooRMSNorm", width)
    leaf("head", "linear", "Linear", vocab, width)
    values: dict[str, Any] = {
        "schema": LAYOUT_SCHEMA,
        "transformers": "0",
        "class": "FooForCausalLM",
        "modules": modules,
        "parameters": shapes,
        "tied": [],
        "checkpointed": ["model.layers"],
        "embeddings": "model.embed",
        "head": "head",
        "vision": [],
        "takes_images": False,
        "text": [],
        "attention": ["eager", "sdpa"],
        "config": {"hidden_size": width, "num_attention_heads": 5, "hidden_act": "gelu"},
    }
    return layout_from_json(json.loads(json.dumps({**values, **changes})))


def test_equal_layers_are_one_module_and_every_layer_counts():
    model = build_generic(decoder_layout(num_layers=3))
    ((part, stack),) = model.stacks()
    assert part is Part.LANGUAGE
    assert (len(stack.kinds), stack.pattern, stack.can_checkpoint) == (1, (0, 0, 0), True)
    layer = 2 * (2 * 3 * 5) + 4 * (2 * 3 * 5) ** 2 + 2 * (2 * 3 * 5) * (7 * 11)
    expected = 2 * (13 * 17) * (2 * 3 * 5) + 2 * 3 * 5 + 3 * layer
    assert sum(numel for _, numel, _ in listed(model)) == expected


def test_a_linear_of_a_class_of_its_own_stays_in_16_bits():
    layout = decoder_layout()
    modules = [
        (one.name, "FooLinear" if one.name.endswith("qkv") else one.class_name, one.kind.value)
        for one in layout.modules
    ]
    packed: list[set[str]] = []
    for each in (layout, decoder_layout(modules=modules)):
        model = prepared_model(build_generic(each), Recipe(method=Method.QLORA))
        packed.append({name for name, module in model.named_modules() if isinstance(module, Linear4bit)})
    every, derived = packed
    assert every - derived == {f"model.layers.{index}.attn.qkv.base_layer" for index in range(3)}
    assert derived


def test_layers_that_cannot_be_checkpointed_are_not():
    model = build_generic(decoder_layout(checkpointed=[]))
    plain, asked = predicted_step(model, BATCH), predicted_step(model, BATCH, checkpoints=True)
    assert asked.forward_live == plain.forward_live


def test_a_tied_head_is_the_embedding():
    free = decoder_layout()
    shapes = [(name, list(shape)) for name, shape in free.shapes.items() if name != "head.weight"]
    tied = build_generic(decoder_layout(parameters=shapes, tied=[["head.weight", "model.embed.weight"]]))
    assert tied.ties_weights
    assert not build_generic(free).ties_weights
    assert [name for name, _, _ in listed(tied)] == [name for name in free.shapes if name != "head.weight"]


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("tape", [Tape, LoggingTape])
def test_layers_with_weights_of_each_other_are_kinds_of_their_own_and_counted_once(tape: type[Tape], checkpoints: bool):
    """Three layers, of which the last has the second's ``up``: its gradient is whole when the second's backward is."""
    free = decoder_layout(num_layers=3)
    first, second = "model.layers.1.mlp.up.weight", "model.layers.2.mlp.up.weight"
    shapes = [(name, list(shape)) for name, shape in free.shapes.items() if name != second]
    model = build_generic(decoder_layout(num_layers=3, parameters=shapes, tied=[[second, first]]))
    assert [name for name, _, _ in listed(model)] == [name for name, _ in shapes]
    ((_, stack),) = model.stacks()
    assert (stack.pattern, list(stack.alike)) == ((0, 1, 2), [0, 0, 0])
    assert weights_without_gradient(model, checkpoints=checkpoints) == []
    stack.checkpoints = checkpoints
    trace = model.run(tape(), BATCH, AttentionBackend(), loss=LossKind.FULL)
    shared = {entry.name: entry for entry in model.parameters()}[first]
    assert shared.layer is None
    arrived = [
        run.layer
        for run in trace.schedule
        for event in trace.sections[run.key].backward
        if isinstance(event, GradientReady | GradientTaken) and event.parameter is shared.parameter
    ]
    assert arrived == [1]


def test_layers_with_weights_of_others_than_layers_are_written_out():
    free = decoder_layout(num_layers=2)
    tied = ["model.layers.1.norm_1.weight", "model.norm.weight"]
    shapes = [(name, list(shape)) for name, shape in free.shapes.items() if name != tied[0]]
    model = build_generic(decoder_layout(num_layers=2, parameters=shapes, tied=[tied]))
    assert not any(isinstance(module, Stack) for _, module in model.named_modules())


def test_names_that_modules_have_here_do_no_harm():
    """``head``, ``module``, ``parameters``, ``run`` and the like are names of modules in some models."""
    names = {
        "model": "run",
        "embed": "parameters",
        "norm_1": "kinds",
        "attn": "forward",
        "up": "steps",
        "norm": "module",
    }

    def renamed(name: str) -> str:
        return ".".join(names.get(part, part) for part in name.split("."))

    plain = decoder_layout()
    layout = decoder_layout(
        modules=[[renamed(m.name), m.class_name, m.kind.value] for m in plain.modules],
        parameters=[(renamed(name), list(shape)) for name, shape in plain.shapes.items()],
        embeddings="run.parameters",
        checkpointed=["run.layers"],
    )
    model = build_generic(layout)
    assert [name for name, _, _ in listed(model)] == list(layout.shapes)
    assert predicted_step(model, BATCH).backward_peak == predicted_step(build_generic(plain), BATCH).backward_peak


def test_attention_targets_are_the_linears_of_attention_only():
    layout = decoder_layout()
    assert build_generic(layout).attention_linears == ("qkv", "out")
    renamed = [[m.name.replace("mlp.down", "mlp.out"), m.class_name, m.kind.value] for m in layout.modules]
    shapes = [(name.replace("mlp.down", "mlp.out"), list(shape)) for name, shape in layout.shapes.items()]
    assert build_generic(decoder_layout(modules=renamed, parameters=shapes)).attention_linears == ("qkv", "attn.out")


def test_a_layer_named_after_its_attention_is_no_attention():
    (layer, *_) = [module for module in decoder_layout().modules if module.name == "model.layers.0.attn"]
    assert is_attention(layer)
    mixers = [
        [m.name, m.class_name.replace("FooAttention", "FooMambaAttention"), m.kind.value]
        for m in decoder_layout().modules
    ]
    with pytest.raises(InputError, match="FooMambaAttention"):
        predicted_step(build_generic(decoder_layout(modules=mixers)), BATCH)


def test_without_a_hidden_size_the_sentence_says_so():
    with pytest.raises(InputError, match="no hidden_size of FooForCausalLM"):
        build_generic(decoder_layout(config={}))


def test_a_head_that_is_more_than_a_linear_is_refused():
    with pytest.raises(InputError, match="the head of FooForCausalLM has weights beside a Linear's"):
        build_generic(decoder_layout(head="model"))


@pytest.mark.parametrize("changes", [{"schema": 0}, {"modules": [["a"]]}, {"modules": [["a", "b", "odd"]]}])
def test_what_is_no_layout_is_refused(changes: dict[str, Any]):
    with pytest.raises(ValueError, match=r"."):
        decoder_layout(**changes)


def test_a_model_that_takes_no_sdpa_runs_eager():
    eager = build_generic(decoder_layout(attention=["eager"]))
    found, expected = (
        predicted_step(eager, BATCH),
        predicted_step(build_generic(decoder_layout()), BATCH, implementation="eager"),
    )
    assert found.backward_peak == expected.backward_peak


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5), st.booleans())
def test_peaks_grow_with_layers_and_tokens(num_layers: int, heads: int, tokens: int, checkpoints: bool):
    def peak(layers: int, num_tokens: int) -> int:
        model = build_generic(decoder_layout(num_layers=layers, width=5 * 2 * heads, inner=5 * 8 * heads))
        batch = Batch(micro_batch=1, num_tokens=num_tokens)
        return predicted_step(model, batch, checkpoints=checkpoints).backward_peak

    assert peak(num_layers, 16 * tokens) <= peak(num_layers + 1, 16 * tokens)
    assert peak(num_layers, 16 * tokens) < peak(num_layers, 16 * tokens + 16)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9))
def test_parameters_are_linear_in_layers(first: int, second: int):
    def count(layers: int) -> int:
        return sum(numel for _, numel, _ in listed(build_generic(decoder_layout(num_layers=layers))))

    layer = count(2) - count(1)
    assert count(first + second) - count(first) == second * layer


def test_the_class_is_named_as_in_transformers():
    model = build_generic(decoder_layout())
    assert type(model).__name__ == "FooForCausalLM"
    assert isinstance(model, GenericModel)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("encoders", "kinds"),
    [
        ({}, ()),
        ({"model.vision_tower": "SiglipVisionModel"}, ("images",)),
        ({"audio_tower": "Qwen2AudioEncoder"}, ("sound",)),
        ({"vision_tower": "SiglipVisionModel", "speech": "ConformerEncoder"}, ("images", "sound")),
    ],
)
def test_what_the_encoders_of_an_unknown_type_take_is_not_counted(
    traced_files: ProbedModelFiles, encoders: dict[str, str], kinds: tuple[str, ...]
):
    modules = [LaidOutModule(name=name, class_name=kind, kind=ModuleKind.OTHER) for name, kind in encoders.items()]
    layout = replace(traced_files.layout, vision=tuple(encoders), modules=[*traced_files.layout.modules, *modules])
    assert inputs_beside_text(layout) == kinds


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("model_type", "reason"), [("fuyu", "FuyuProcessor refuses images"), ("idefics", "nothing that sees is told")]
)
def test_a_model_whose_images_cannot_be_had_is_planned_without_them(model_type: str, reason: str):
    """Its processor makes none of this size, or its tower is no model of transformers by itself."""
    transformers = pytest.importorskip("transformers")
    described_by = ModelFiles(id="seer", config=transformers.AutoConfig.for_model(model_type).to_dict())
    model = with_layout(described_by)
    assert isinstance(model, ProbedModelFiles)
    assert (model.layout.vision, model.not_counted) == ((), ("images",))
    asked = with_images(model, WorkloadRequest())
    assert asked.not_counted == ("images",)
    assert asked.notes[-1].startswith(f"Its images are not planned: {reason}")
    with pytest.raises(InputError, match="vlmplan does not describe how seer sees"):
        sample_image(Workload(model=model, seq_len=64, images_per_sample=1))


@pytest.mark.sweep
def test_images_that_samples_do_not_have_are_not_missed(traced_files: ProbedModelFiles):
    blind = replace(traced_files, not_counted=("images", "sound"))
    assert workload_of(blind, WorkloadRequest()).model.not_counted == ("images", "sound")
    assert workload_of(blind, WorkloadRequest(images_per_sample=0)).model.not_counted == ("sound",)


@pytest.mark.parametrize("name", ["bart", "mbart"])
def test_an_encoder_and_a_decoder_multiply_what_a_family_multiplies(probe: ModuleType, name: str):
    """Of prompts and answers of their own lengths, keys and values of what the encoder has read among them."""
    from test_families_bart import BATCH as PAIRS
    from test_families_bart import TYPES

    layout = layout_from_json({**probe.layout(TYPES[name]), "schema": LAYOUT_SCHEMA})
    found, expected = (predicted_step(tree, PAIRS) for tree in (build_generic(layout), build_model(TYPES[name])))
    assert found.end_live == 0
    flops = [sum(work.flops for work in step.trace.works()) for step in (found, expected)]
    assert flops[0] == pytest.approx(flops[1], rel=0.001)


def test_keys_and_values_of_t5_are_made_of_what_its_encoder_has_read(probe: ModuleType):
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 320}
    config = {"model_type": "t5", **sizes, "decoder_start_token_id": 0}
    layout = layout_from_json({**probe.layout(config), "schema": LAYOUT_SCHEMA})
    pairs = Batch(micro_batch=2, num_tokens=48, target_tokens=16)
    step = predicted_step(build_generic(layout), pairs)
    assert step.trace is not None
    expected = 0
    for module in layout.modules:
        if module.kind is ModuleKind.LINEAR:
            reads = "encoder" in module.name.split(".") or module.name.endswith(
                ("EncDecAttention.k", "EncDecAttention.v")
            )
            num_tokens = pairs.micro_batch * (pairs.num_tokens if reads else pairs.target_tokens)
            expected += 2 * num_tokens * math.prod(layout.shape(f"{module.name}.weight"))
    forward = step.trace.works()[0]
    assert forward.flops - forward.attention_flops == expected

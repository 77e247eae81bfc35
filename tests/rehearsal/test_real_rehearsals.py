"""Real rehearsals of tiny models, as the command line asks for them."""

import json
from pathlib import Path

import pytest
from recorded_rehearsal import CONFIG, given, recorded

from cli_calls import DONE, Call, call, folder_of, refusal, says
from image_encoder_folders import CONFIGS, PREPROCESSORS
from image_models import DESCRIBED_MODELS, IMAGE_MODELS

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

TINY = CONFIG | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 512}


@pytest.fixture(autouse=True)
def _place(isolated: None) -> None:
    folder_of("tiny", TINY)
    folder_of("small-llama", CONFIG)


def document(*words: str) -> dict:
    found: Call = call("rehearse", *words, "--json")
    assert found.code == DONE, found.err
    return found.document


@pytest.mark.sweep
def test_the_recorded_answer_is_what_the_trainer_says_now():
    """Bytes, phases and messages; if this fails, record it anew and see what else changes."""
    values = given(Path("small-llama"))
    words = ["--gpu", values["gpu"], "--zero-stage", "2", "--seq-len", "512", "--micro-batch", "2", "--grad-accum", "2"]
    switches = ["--no-activation-checkpointing", "--no-expandable-segments"]
    found = document("--model", "small-llama", *words, *switches, "--rank", "0")
    bare = {phase.name: phase for phase in recorded().last_phases}
    workspaces = next(one["bytes"] for one in found["not_rehearsed"] if one["what"] == "cuBLAS workspaces")
    for phase in found["phases"]:
        added = 0 if phase["name"] in ("load", "init") else workspaces
        assert phase["peak_bytes"] - added == bare[phase["name"]].peak_bytes, phase["name"]
        assert phase["flops"] == bare[phase["name"]].flops
    assert found["flops"] == recorded().flops_per_step
    assert found["collective_bytes"]["per_step"] == sum(one.num_bytes for one in recorded().step_collectives)


@pytest.mark.sweep
def test_plain_pytorch_with_adapters_from_a_plan():
    words = ("--model", "tiny", "--gpu", "rtx-4090", "--method", "lora", "--zero-stage", "none", "--seq-len", "64")
    out = call("recommend", *words[:2], "--gpu", "rtx-4090:1", *words[4:], "--out", "plans")
    assert out.code == DONE, out.err
    assert json.loads(Path("plans/plan.json").read_text())["ds_config"] is None
    found = document("--plan", "plans/plan.json", "--svg", "memory.svg")
    assert found["collective_bytes"] == {"per_step": 0, "by_kind": {}}
    assert found["components_at_peak"]["weights"] > 0
    assert Path("memory.svg").read_text().endswith("</svg>\n")


@pytest.mark.sweep
def test_a_context_of_more_tokens_than_values_are_followed_for_is_rehearsed():
    """The chunked loss tries the model with four values, and reads them: rehearsals follow 2**18 values and no more."""
    found = document("--model", "tiny", "--gpu", "rtx-4090", "--seq-len", str(2**17), "--loss", "chunked")
    assert found["components_at_peak"]["activations"] > 0


def assert_planned_as_rehearsed(*words: str, gpu: str = "a100-sxm4-80gb:1", tolerance: float = 0.001) -> None:
    for phase in document(*words, "--gpu", gpu)["phases"]:
        assert phase["peak_bytes"] == pytest.approx(phase["estimated_peak_bytes"], rel=tolerance), phase["name"]


@pytest.mark.long
@pytest.mark.sweep
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--grad-accum", "2"),
        ("--grad-accum", "3", "--no-activation-checkpointing"),
        ("--method", "lora"),
        ("--method", "lora", "--use-dora", "--lora-dropout", "0.1"),
        ("--offload-params", "cpu"),
    ],
)
def test_an_evaluation_before_the_first_step_takes_what_is_planned(options: tuple[str, ...]):
    """DeepSpeed decides by its order, which ends with forward, what any later forward leaves whole: nothing."""
    words = ("--model", "small-llama", "--zero-stage", "3", "--seq-len", "128", "--micro-batch", "2")
    evaluated = ("--eval-batch", "2", "--eval-on-start")
    assert_planned_as_rehearsed(*words, *evaluated, *options, gpu="a100-sxm4-80gb:4", tolerance=0.002)


@pytest.mark.sweep
@pytest.mark.long
def test_images_that_segment_anything_sees_take_what_is_planned():
    """DeepSeek-VL's second tower has a bias of its own in every layer's attention."""
    folder_of("seeing", dict(DESCRIBED_MODELS["deepseek_vl_hybrid"]))
    assert_planned_as_rehearsed("--model", "seeing", "--method", "lora", "--images-per-sample", "1")


@pytest.mark.sweep
@pytest.mark.long
@pytest.mark.parametrize(
    "words", [("--method", "full", "--zero-stage", "3"), ("--method", "lora")], ids=["full", "lora"]
)
def test_an_image_that_an_encoder_reads_before_the_prompt_takes_what_is_planned(words: tuple[str, ...]):
    """Florence-2 with images of odd sides: attention of channels is torch's fallback, as its heads lie apart."""
    config, vision = CONFIGS["florence2"], {"embed_dim": [192, 384], "window_size": 7, "projection_dim": 512}
    text = config["text_config"] | {"d_model": 512, "encoder_ffn_dim": 1024, "max_position_embeddings": 1024}
    parts = {"text_config": text, "vision_config": {**config["vision_config"], **vision}}
    settings = {**PREPROCESSORS["florence2"], "crop_size": {"height": 205, "width": 163}}
    settings["image_seq_length"] = 26 * 21 + 1
    folder_of("florence", {**config, **parts}, preprocessor_config=json.dumps(settings))
    words = ("--model", "florence", "--seq-len", "600", "--target-len", "64", "--micro-batch", "2", *words)
    assert_planned_as_rehearsed(*words, gpu="a100-sxm4-80gb:2", tolerance=0.005)


GPT2 = {"model_type": "gpt2", "n_embd": 512, "n_layer": 2, "n_head": 8, "n_positions": 1024, "vocab_size": 512}


@pytest.mark.sweep
@pytest.mark.parametrize("config", [CONFIG, GPT2], ids=["rotary", "GPT-2"])
def test_eager_attention_under_autocast_takes_what_is_planned(config):
    """Weights of the softmax stay in float32, and what is multiplied is a cast of them."""
    folder_of("eager", config)
    words = ("--zero-stage", "none", "--attention", "eager", "--seq-len", "1024", "--no-activation-checkpointing")
    assert_planned_as_rehearsed("--model", "eager", "--method", "full", *words)


@pytest.mark.long
@pytest.mark.sweep
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_attention_in_bf16_on_a_card_that_emulates_it_takes_what_is_planned(model_type: str):
    """No fused kernel takes it there: scores are in float32, with Gemma's masks of windows added to them."""
    folder_of("emulated", {**CONFIG, "model_type": model_type, "head_dim": 64, "sliding_window": 512})
    words = ("--precision", "bf16", "--seq-len", "1024", "--no-activation-checkpointing", "--micro-batch", "2")
    assert_planned_as_rehearsed("--model", "emulated", "--method", "lora", "--loss", "full", *words, gpu="t4:1")


@pytest.mark.long
@pytest.mark.sweep
@pytest.mark.parametrize("loss", ["chunked", "full"])
def test_what_stage_3_prefetches_between_the_head_and_the_final_norm_is_planned(loss: str):
    """The model without its head has no weights, and prefetches once the head's are gone; a loss that is made where the
    head is has no backward through the modules around it."""
    folder_of("wide-head", {**CONFIG, "hidden_size": 512, "intermediate_size": 1536, "vocab_size": 24000})
    words = ("--model", "wide-head", "--method", "full", "--zero-stage", "3", "--offload-params", "cpu")
    assert_planned_as_rehearsed(*words, "--offload-optimizer", "cpu", "--loss", loss, gpu="rtx-3090:2")


@pytest.mark.long
@pytest.mark.sweep
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_head_with_a_bias_that_is_whole_twice_in_the_first_step_is_planned(method: str):
    """Its weights share one all-gather while no order is known; later it stays whole from forward to backward."""
    sizes = {"n_embd": 512, "dff": 1024, "n_layer": 4, "n_head": 8, "vocab_size": 64000}
    folder_of("biased-head", {"model_type": "ctrl", "architectures": ["CTRLLMHeadModel"], **sizes})
    words = ("--model", "biased-head", "--method", method, "--zero-stage", "3", "--offload-optimizer", "cpu")
    found = document(*words, "--seq-len", "128", "--loss", "chunked", "--gpu", "l4:8")
    assert found["peak_step"] == 1
    assert found["peak_allocated_bytes"] == pytest.approx(found["estimated_peak_allocated_bytes"], rel=0.001)


@pytest.mark.long
@pytest.mark.sweep
def test_a_heads_gradient_that_waits_until_the_next_one_comes_is_planned():
    """The bias's comes before it, so that the next is the final norm's, for whose module weights are prefetched."""
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 8}
    folder_of("biased", {"model_type": "phi", "architectures": ["PhiForCausalLM"], "vocab_size": 32000, **sizes})
    words = ("--model", "biased", "--method", "full", "--zero-stage", "3", "--offload-optimizer", "cpu")
    assert_planned_as_rehearsed(*words, "--seq-len", "128", "--loss", "chunked", gpu="l4:8", tolerance=0.002)


@pytest.mark.sweep
@pytest.mark.long
def test_images_that_several_layers_take_features_of_take_what_is_planned():
    """Cohere Compass has a merger for each of the first layers of its language model."""
    config = dict(IMAGE_MODELS["cohere_compass"])
    text = {**config["text_config"], "num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 6}
    folder_of("seeing", config | {"text_config": text})
    assert_planned_as_rehearsed("--model", "seeing", "--method", "lora", "--images-per-sample", "1")


@pytest.mark.sweep
@pytest.mark.long
def test_fsdp2_keeps_the_heads_gradient_until_its_part_is_cast():
    """It is the last of its group, to which a variable of torch's loop refers."""
    folder_of("wide-head", {**CONFIG, "hidden_size": 512, "intermediate_size": 1536, "vocab_size": 24000})
    words = ("--model", "wide-head", "--method", "full", "--fsdp", "--grad-accum", "2", "--no-cached-casts")
    assert_planned_as_rehearsed(*words, gpu="rtx-3090:4")


@pytest.mark.sweep
@pytest.mark.long
def test_fsdp2_gathers_the_root_with_embedding_and_head_again_for_backward():
    folder_of("wide-root", {**CONFIG, "hidden_size": 512, "intermediate_size": 1536, "vocab_size": 24000})
    words = ("--model", "wide-root", "--method", "full", "--fsdp", "--shard-units", "layers", "--no-cached-casts")
    assert_planned_as_rehearsed(*words, gpu="rtx-3090:4")


@pytest.mark.sweep
@pytest.mark.long
@pytest.mark.parametrize("words", [(), ("--precision", "bf16-pure"), ("--no-sync-each-batch",)])
def test_fsdp2_keeps_what_copies_of_the_model_have_summed(words):
    """2 copies on 4 ranks each: added to an earlier micro batch's, or cast, what was summed waits."""
    folder_of("copied", {**CONFIG, "hidden_size": 512, "intermediate_size": 1536, "vocab_size": 24000})
    words = ("--model", "copied", "--method", "full", "--fsdp", "--dp-shard-size", "4", "--grad-accum", "2", *words)
    assert_planned_as_rehearsed(*words, "--num-nodes", "2", gpu="rtx-3090:4")


@pytest.mark.sweep
@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ("--grad-accum", "2"),
        ("--precision", "bf16-pure", "--grad-accum", "2", "--no-sync-each-batch"),
        ("--method", "lora", "--no-reshard-after-forward", "--no-orig-params"),
        ("--offload-params", "cpu", "--offload-optimizer", "cpu"),
    ],
)
def test_copies_of_the_model_under_fsdp1_take_what_is_planned(words):
    """HYBRID_SHARD: what was summed is cast on a stream of its own, which keeps its blocks. The share of each copy
    alone crosses the network; a rehearsal does not time what the host updates."""
    folder_of("copied", {**CONFIG, "hidden_size": 512, "intermediate_size": 1536, "vocab_size": 24000})
    flat = ("--flat-parameters", "backward-pre", "--shard-units", "layers", "--no-expandable-segments")
    words = ("--model", "copied", "--method", "full", "--fsdp", *flat, "--dp-shard-size", "4", *words)
    found = document(*words, "--num-nodes", "2", "--gpu", "rtx-3090:4", "--inter-node-gbit", "10")
    if "--offload-params" not in words:
        assert found["step_seconds"] == pytest.approx(found["estimated_step_seconds"], rel=0.1)
    for phase in found["phases"]:
        assert phase["peak_bytes"] == pytest.approx(phase["estimated_peak_bytes"], rel=0.002), phase["name"]
    assert found["peak_reserved_bytes"] == pytest.approx(found["estimated_peak_reserved_bytes"], rel=0.02)


DEEPSEEK_V4 = {
    "model_type": "deepseek_v4",
    "hidden_size": 512,
    "moe_intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "head_dim": 128,
    "q_lora_rank": 192,
    "o_groups": 4,
    "o_lora_rank": 96,
    "index_n_heads": 8,
    "index_head_dim": 64,
    "index_topk": 32,
    "vocab_size": 512,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "compress_ratios": [0, 4, 128],
    "num_hash_layers": 1,
}


@pytest.mark.sweep
@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ("full", "--zero-stage", "none", "--no-activation-checkpointing"),
        ("lora", "--zero-stage", "none"),
        ("lora", "--zero-stage", "3"),
    ],
    ids=" ".join,
)
def test_streams_that_are_mixed_and_keys_that_are_compressed_take_what_is_planned(words):
    """Under autocast, and where ZeRO-3's weights stay whole until the backward of a layer that ran again is over."""
    folder_of("v4", DEEPSEEK_V4)
    words = ("--method", *words, "--seq-len", "512", "--micro-batch", "2")
    assert_planned_as_rehearsed("--model", "v4", *words, gpu="a100-sxm4-80gb:2", tolerance=0.002)


def test_what_the_trainer_cannot_rehearse_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    """Its own words for a rank that its process group would not have."""
    monkeypatch.setattr("vlmplan.rehearsal.process.COMMAND", ("-m", "vlmplan_trainer.no_such_module"))
    says(refusal("rehearse", "--model", "tiny", "--gpu", "rtx-4090:1"), "ended before it began", "no_such_module")


BART = {
    "model_type": "bart",
    "d_model": 256,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 512,
    "decoder_ffn_dim": 512,
    "vocab_size": 4096,
}
WIDE_BLOOM = {"model_type": "bloom", "hidden_size": 256, "n_layer": 1, "n_head": 4, "vocab_size": 512}
WORDS = ("--zero-stage", "3", "--method", "full", "--seq-len", "64")


@pytest.mark.long
@pytest.mark.sweep
@pytest.mark.parametrize("config", [BART, WIDE_BLOOM], ids=["bart", "bloom"])
def test_loading_under_stage_3_gathers_the_weights_of_one_module_at_a_time_as_for_files(config):
    """Random weights would be drawn for a module with its children's: both layers of an MLP, a table and a norm."""
    folder_of("sharded", config)
    phases = document("--model", "sharded", "--gpu", "h100-sxm:2", *WORDS)["phases"]
    (load,) = (phase for phase in phases if phase["name"] == "load")
    assert load["peak_bytes"] == pytest.approx(load["estimated_peak_bytes"], rel=0.002)


@pytest.mark.long
@pytest.mark.sweep
@pytest.mark.parametrize("switches", [(), ("--no-double-quant",), ("--use-dora",)], ids=["twice", "once", "dora"])
def test_weights_of_4_bits_are_loaded_in_the_bytes_that_are_planned(switches: tuple[str, ...]):
    """Scales that are quantised too are in float32 until that is done; DoRA copies them with a weight and its layer."""
    folder_of("packed", {**CONFIG, "hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 512})
    words = ("--method", "qlora", "--zero-stage", "none", "--seq-len", "64", "--no-kbit-upcast", *switches)
    phases = document("--model", "packed", "--gpu", "h100-sxm", *words)["phases"]
    (load,) = (phase for phase in phases if phase["name"] == "load")
    assert load["peak_bytes"] == pytest.approx(load["estimated_peak_bytes"], rel=2e-4)


@pytest.mark.sweep
@pytest.mark.parametrize("attention", ["sdpa", "flash_attention_2", "eager"])
def test_attention_of_a_single_key_head_takes_what_is_planned(attention: str):
    """Falcon's: torch's fallback, whose mask is in numbers; a package that its file looks for when it is imported."""
    sizes = {"hidden_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8, "vocab_size": 2048}
    folder_of("falcon", {"model_type": "falcon", **sizes})
    words = ["--gpu", "h100-sxm", "--method", "full", "--zero-stage", "2", "--seq-len", "1024", "--micro-batch", "2"]
    found = document("--model", "falcon", *words, "--attention", attention)
    errors = {phase["name"]: phase["relative_error"] for phase in found["phases"] if phase["peak_bytes"]}
    assert {"forward", "backward", "step"} <= errors.keys()
    assert all(abs(error) < 0.001 for error in errors.values()), errors

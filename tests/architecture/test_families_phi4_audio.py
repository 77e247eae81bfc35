"""The audio tower of Phi-4-multimodal against transformers, op by op, and how its feature extractor counts."""

import pytest
from test_families_phi4_multimodal import AUDIO, CONFIG

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.audio import AudioShape, audio_shape
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.architecture.tape import Tape
from vlmplan.errors import InputError
from vlmplan.recipe.choices import LossKind

WIDTHS = {"hidden_size": 256, "intermediate_size": 384, "nemo_conv_channels": 64}
TOWER = {**AUDIO, **WIDTHS, "ext_pw_out_channel": 256, "depthwise_separable_out_channel": 256, "num_blocks": 3}
HEARING = {**CONFIG, "num_hidden_layers": 2, "audio_config": TOWER}
OTHERS = {
    "symmetric": {"bias_symmetric": True, "bias_max_distance": 40, "kernel_size": 1},
    "wide": {"depthwise_multiplier": 2, "kernel_size": 5, "nemo_activation": "silu"},
}
ENCODER = "model.embed_tokens_extend.audio_embed.encoder"
PARTS = {"all": (), "no tower": (ENCODER,), "no decoder": ("model.layers", "model.embed_tokens.", "model.norm")}


def assert_step(config=None, **options):
    """With eager attention, as a GPU's kernels differ from those of CPUs for this mask."""
    pytest.importorskip("transformers")
    from audio_steps import assert_audio_step

    assert_audio_step(HEARING if config is None else config, attention="eager", **options)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("frozen", PARTS)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("seconds", [0.4, 7.31])
def test_a_step_with_sound_keeps_and_peaks_as_in_transformers(seconds, checkpoints, frozen):
    assert_step(seconds=seconds, checkpoints=checkpoints, frozen=PARTS[frozen])


@pytest.mark.parametrize("seconds", [44, 81])
def test_a_long_sound_is_cut_into_sequences(seconds):
    assert_step(seconds=seconds, rows=1, audios_per_sample=1)


def test_sound_beside_images_has_projections_of_its_own():
    assert_step(seconds=3, audios_per_sample=1, image=(448, 448))


@pytest.mark.parametrize("name", OTHERS)
def test_other_values_run_as_in_transformers(name):
    assert_step({**HEARING, "audio_config": {**TOWER, **OTHERS[name]}}, seconds=3)


@pytest.mark.parametrize("seconds", [0.025, 0.3, 1, 1.0075, 30])
def test_frames_and_tokens_are_those_of_the_extractor(seconds):
    np = pytest.importorskip("numpy")
    transformers = pytest.importorskip("transformers")
    settings = {"hop_length": 150, "audio_downsample_rate": 2}
    extractor = transformers.Phi4MultimodalFeatureExtractor(**settings)
    sound = np.zeros(round(seconds * 16_000), dtype=np.float32)
    made = extractor([sound, sound], sampling_rate=16_000)
    frames = made["audio_input_features"].shape[1]
    found = audio_shape(CONFIG, settings, seconds=seconds)
    assert found == AudioShape(
        num_tokens=int(made["audio_embed_sizes"][0]), num_frames=frames, num_padded_frames=frames
    )
    assert tuple(made["audio_attention_mask"].shape) == (2, frames)


@pytest.mark.parametrize(
    ("rows", "attention", "sentence"),
    [(2, "sdpa", "more than 500 of one sound at a time alone"), (1, "flash_attention_2", "give --attention sdpa")],
)
def test_what_transformers_does_not_run_is_refused(rows, attention, sentence):
    audio = audio_shape(CONFIG, None, seconds=44)
    batch = Batch(micro_batch=rows, num_tokens=1000, audios_per_sample=1, audio=audio)
    tree, backend = build_model(HEARING), AttentionBackend(implementation=attention)
    with pytest.raises(InputError, match=sentence):
        tree.run(Tape(follows_weights=False), batch, backend, loss=LossKind.CHUNKED)

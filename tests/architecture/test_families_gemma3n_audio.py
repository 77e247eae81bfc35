"""The audio tower of Gemma 3n against transformers', alone, as its vision tower is timm's; how its extractor counts."""

from types import SimpleNamespace
from typing import Any

import pytest

from timm_cases import GEMMA3N
from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.audio import AudioShape, audio_shape
from vlmplan.architecture.config import Config
from vlmplan.architecture.families import build_model
from vlmplan.architecture.families.gemma3n_audio import Gemma3nAudio
from vlmplan.architecture.model import Batch
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import GradientReady, Span
from vlmplan.errors import InputError
from vlmplan.recipe.choices import LossKind
from vlmplan.units import DType

TOWER = {"hidden_size": 256, "conf_num_hidden_layers": 3, "conf_num_attention_heads": 4}
OTHERS = {
    "usual": {},
    "blocks": {"conf_attention_chunk_size": 10, "conf_attention_context_left": 21, "conf_conv_kernel_size": 3},
    "all positions": {"conf_reduction_factor": 1, "sscp_conv_channel_size": [64, 16]},
}


def measured(config: dict[str, Any], num_sounds: int, num_frames: int) -> Any:
    """The real tower with the sum of its features as the loss."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers import Gemma3nAudioConfig
    from transformers.models.gemma3n.modeling_gemma3n import Gemma3nAudioEncoder

    from torch_probe import measured_step

    class Alone(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower = Gemma3nAudioEncoder._from_config(Gemma3nAudioConfig(**config), dtype=torch.bfloat16)

        def forward(self, spectrograms: Any, mask: Any) -> Any:
            return SimpleNamespace(loss=self.tower(spectrograms, mask).last_hidden_state.sum())

    floats = {"spectrograms": (num_sounds, num_frames, 128)}
    return measured_step(Alone, {"mask": torch.zeros(num_sounds, num_frames, dtype=torch.bool)}, floats=floats)


def predicted(config: dict[str, Any], num_sounds: int, num_frames: int) -> dict[str, int]:
    """The same of the tree."""
    tower = Gemma3nAudio(Config({"model_type": "gemma3n_audio", **config}))
    tape = Tape(accumulates_in_place=False, follows_weights=False)
    with tape.section("batch"):
        spectrograms = tape.tensor((num_sounds, num_frames, 128), DType.BFLOAT16)
        mask = tape.tensor((num_sounds, num_frames), DType.BOOL)
    features = tower(spectrograms)
    with tape.section("loss"):
        loss = ops.total(features, ())
    del features
    tape.run_backward(loss)
    trace = tape.trace()
    del mask
    live = peak = 0
    found: dict[str, int] = {}
    for name, sections in (("forward", trace.forward()), ("backward", trace.backward())):
        peak = live
        for _, section in sections:
            for event in getattr(section, name):
                if isinstance(event, Span):
                    peak = max(peak, live + event.peak_bytes)
                    live += event.delta_bytes
                elif isinstance(event, GradientReady):
                    live -= event.num_bytes
        found |= {f"{name}_peak": peak, f"{name}_live": live}
    return found


@pytest.mark.one_in(3)
@pytest.mark.parametrize("num_sounds", [1, 2])
@pytest.mark.parametrize("name", OTHERS)
def test_a_step_of_the_tower_keeps_and_peaks_as_in_transformers(name, num_sounds):
    config = {**TOWER, **OTHERS[name]}
    real, found = measured(config, num_sounds, 797), predicted(config, num_sounds, 797)
    for kind in ("forward_live", "forward_peak", "backward_peak"):
        expected = getattr(real, kind)
        assert abs(found[kind] - expected) <= 0.001 * expected, (kind, found[kind], expected)


@pytest.mark.parametrize("settings", [{}, {"frame_length_ms": 25.0, "hop_length_ms": 12.5}], ids=["usual", "longer"])
@pytest.mark.parametrize("seconds", [0.04, 0.3, 1, 1.0075, 29.999, 31])
def test_frames_are_those_of_the_extractor_and_tokens_as_many_for_any_sound(seconds, settings):
    np = pytest.importorskip("numpy")
    transformers = pytest.importorskip("transformers")
    extractor = transformers.Gemma3nAudioFeatureExtractor(**settings)
    made = extractor([np.zeros(round(seconds * 16_000), dtype=np.float32)])
    mask = made["input_features_mask"][0]
    assert audio_shape(GEMMA3N, settings, seconds=seconds) == AudioShape(
        num_tokens=192, num_frames=int(mask.sum()), num_padded_frames=len(mask), num_marker_tokens=4
    )
    assert made["input_features"][0].shape == (len(mask), 128)


def run(config: dict[str, Any], *, seconds: float) -> Any:
    audio = audio_shape(config, None, seconds=seconds)
    batch = Batch(micro_batch=1, num_tokens=400, audios_per_sample=1, audio=audio)
    return build_model(config).run(Tape(follows_weights=False), batch, AttentionBackend(), loss=LossKind.CHUNKED)


def test_features_of_a_short_sound_are_filled_up_with_those_of_padding():
    short, long = (run(GEMMA3N, seconds=seconds) for seconds in (1, 30))
    assert "audio.features" in short.sections
    kept = [sum(span.delta_bytes for span in one.sections["audio.embedding"].forward) for one in (short, long)]
    assert kept[0] < kept[1]


def test_more_features_than_tokens_are_refused_by_the_key():
    with pytest.raises(InputError, match="audio_soft_tokens_per_image is 20, but the audio tower makes 188 features"):
        run({**GEMMA3N, "audio_soft_tokens_per_image": 20}, seconds=30)

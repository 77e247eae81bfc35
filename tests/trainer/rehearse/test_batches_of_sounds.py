"""Batches of sounds in a rehearsal are those of transformers' extractors: names, shapes, types, places of tokens."""

from dataclasses import asdict

import pytest

from model_table import packaged_config
from vlmplan.architecture.audio import audio_shape

RATE = 16_000
MARKERS = ("audio_start_token_id", "audio_end_token_id")


def made_of(alias: str, extractor: dict[str, int], *, seconds: float, num_tokens: int, audios_per_sample: int = 2):
    from transformers import AutoConfig

    from vlmplan_trainer.rehearse.batch import micro_batch
    from vlmplan_trainer.rehearse.samples import Samples
    from vlmplan_trainer.rehearse.sounds import AudioSpec

    values = packaged_config(alias)
    audio = audio_shape(values, extractor, seconds=seconds)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    spec = AudioSpec(**asdict(audio))
    samples = Samples(micro_batch=1, num_tokens=num_tokens, audios_per_sample=audios_per_sample, audio=spec)
    return config, audio, micro_batch(config, samples)


@pytest.mark.parametrize(
    ("alias", "options"),
    [
        ("qwen2.5-omni-7b", {"padding": "max_length"}),
        ("qwen3-omni-30b-a3b", {"padding": True, "truncation": False}),
    ],
)
def test_thinkers_get_what_whispers_extractor_makes(alias, options):
    transformers = pytest.importorskip("transformers")
    np = pytest.importorskip("numpy")
    settings = {"feature_size": 128, "chunk_length": 4}
    sounds = [np.zeros(round(1.3 * RATE), dtype=np.float32)] * 2
    extractor = transformers.WhisperFeatureExtractor(**settings)
    real = extractor(sounds, sampling_rate=RATE, return_attention_mask=True, return_tensors="pt", **options)
    _, _, made = made_of(alias, settings, seconds=1.3, num_tokens=200)
    assert made.shapes == {"input_features": tuple(real["input_features"].shape)}
    mask = made.values["feature_attention_mask"]
    assert mask.dtype == real["attention_mask"].dtype
    assert (mask == real["attention_mask"]).all()


def test_phi_4_multimodal_gets_what_its_extractor_makes():
    transformers = pytest.importorskip("transformers")
    np = pytest.importorskip("numpy")
    sounds = [np.zeros(round(1.3 * RATE), dtype=np.float32)] * 2
    real = transformers.Phi4MultimodalFeatureExtractor()(sounds, sampling_rate=RATE, return_tensors="pt")
    _, _, made = made_of("phi-4-multimodal", {}, seconds=1.3, num_tokens=200)
    assert made.shapes == {"audio_input_features": tuple(real["audio_input_features"].shape)}
    for name in ("audio_embed_sizes", "audio_attention_mask"):
        assert made.values[name].dtype == real[name].dtype
        assert (made.values[name] == real[name]).all()


@pytest.mark.parametrize("room", [0, 1, 4, 40])
def test_every_token_of_a_sound_has_its_place_and_no_label(room):
    config, audio, made = made_of("qwen2.5-omni-7b", {}, seconds=3, num_tokens=2 * 75 + room)
    ids, labels = made.values["input_ids"], made.values["labels"]
    is_sound = ids == config.audio_token_id
    assert ids.shape == (1, 2 * audio.num_tokens + room)
    assert int(is_sound.sum()) == 2 * audio.num_tokens
    assert (labels[is_sound] == -100).all()
    num_marked = 2 if room >= 2 * len(MARKERS) else 0
    assert [int((ids == getattr(config, name)).sum()) for name in MARKERS] == [num_marked] * len(MARKERS)

"""The audio towers of Qwen's Omni thinkers against transformers, op by op."""

from dataclasses import asdict
from typing import Any

import pytest
from test_families_omni import AUDIO, IMAGE, QWEN3, QWEN25, START, VOCABULARY, altered

from vlmplan.architecture.audio import audio_shape
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch

TOKENS = {"audio_start_token_id": VOCABULARY - 4, "audio_end_token_id": VOCABULARY - 5}
WIDE = {**AUDIO, "d_model": 512, "encoder_ffn_dim": 1536, "encoder_attention_heads": 8, "output_dim": 1024}
SMALL_DECODER = {"num_hidden_layers": 2}
CONFIGS = {
    "qwen2.5": altered(QWEN25, text_config=SMALL_DECODER, audio_config={**WIDE, "num_mel_bins": 64, "n_window": 50})
    | TOKENS
    | {"audio_token_index": VOCABULARY - 2},
    "qwen3": altered(
        QWEN3,
        text_config={**SMALL_DECODER, "num_experts": 2},
        audio_config={**WIDE, "downsample_hidden_size": 96, "num_mel_bins": 32, "n_window_infer": 400},
    )
    | TOKENS
    | {"audio_token_id": VOCABULARY - 2},
}
EXTRACTOR = {"chunk_length": 20}
PARTS = {"all": (), "no tower": ("model.audio_tower",), "no decoder": ("model.language_model", "lm_head")}


@pytest.fixture(autouse=True)
def numbers_of_fake_tensors_on_cpus(monkeypatch):
    """``torch.tensor`` of a list with fake tensors reads their memory on CPUs (``get_audio_cu_seqlens``)."""
    torch: Any = pytest.importorskip("torch")
    tensor = torch.tensor

    def of_numbers(values: Any, **options: Any) -> Any:
        if isinstance(values, list):
            values = [int(one) if isinstance(one, torch.Tensor) else one for one in values]
        return tensor(values, **options)

    monkeypatch.setattr(torch, "tensor", of_numbers)


def assert_step(name, *, seconds, audios_per_sample=2, image=None, micro_batch=2, tolerance=0.001, **options):
    """A step on sounds, each between a start and an end token, behind images where there are any."""
    pytest.importorskip("transformers")
    from transformers import AutoConfig

    from family_checks import assert_step_matches
    from vlmplan_trainer.rehearse.batch import ImageSpec, Samples
    from vlmplan_trainer.rehearse.batch import micro_batch as made_of
    from vlmplan_trainer.rehearse.sounds import AudioSpec

    config = CONFIGS[name]
    audio = audio_shape(config, EXTRACTOR, seconds=seconds)
    shape = None if image is None else image_shape(config, None, width=image[0], height=image[1])
    num_tokens = 64 + audio.num_tokens * audios_per_sample + (0 if shape is None else shape.num_tokens)
    batch = Batch(
        micro_batch=micro_batch,
        num_tokens=num_tokens,
        images_per_sample=0 if shape is None else 1,
        image=shape,
        audios_per_sample=audios_per_sample,
        audio=audio,
    )
    values = {key: value for key, value in config.items() if key != "model_type"}
    samples = Samples(
        micro_batch=micro_batch,
        num_tokens=num_tokens,
        images_per_sample=batch.images_per_sample,
        image=None if shape is None else ImageSpec(**asdict(shape)),
        audios_per_sample=audios_per_sample,
        audio=AudioSpec(**asdict(audio)),
    )
    made = made_of(AutoConfig.for_model(config["model_type"], **values), samples)
    return assert_step_matches(config, batch, made.values, made.shapes, tolerance=tolerance, **options)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("frozen", PARTS)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("seconds", [0.4, 7.31])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_with_sound_keeps_and_peaks_as_in_transformers(name, seconds, checkpoints, frozen):
    assert_step(name, seconds=seconds, checkpoints=checkpoints, frozen=PARTS[frozen])


@pytest.mark.parametrize("name", CONFIGS)
def test_one_sound_in_one_chunk_is_copied_less(name):
    assert_step(name, seconds=0.9, audios_per_sample=1, micro_batch=1)


@pytest.mark.parametrize("name", CONFIGS)
def test_sound_beside_images_runs_as_in_transformers(name):
    assert_step(name, seconds=3, audios_per_sample=1, image=(224, 168))


@pytest.mark.parametrize("name", CONFIGS)
def test_eager_attention_of_a_tower_keeps_its_scores(name):
    assert_step(name, seconds=7.31, attention="eager")


def test_the_ids_of_a_configuration_are_apart():
    assert len({IMAGE, START, *TOKENS.values(), VOCABULARY - 2}) == 5

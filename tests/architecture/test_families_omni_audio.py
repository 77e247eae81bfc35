"""The audio towers of Qwen's Omni thinkers against transformers, op by op."""

from typing import Any

import pytest
from test_families_omni import AUDIO, IMAGE, QWEN3, QWEN25, START, VOCABULARY, altered

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


def assert_step(name, **options):
    from audio_steps import assert_audio_step

    assert_audio_step(CONFIGS[name], extractor=EXTRACTOR, **options)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("frozen", PARTS)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("seconds", [0.4, 7.31])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_with_sound_keeps_and_peaks_as_in_transformers(name, seconds, checkpoints, frozen):
    assert_step(name, seconds=seconds, checkpoints=checkpoints, frozen=PARTS[frozen])


@pytest.mark.parametrize("name", CONFIGS)
def test_one_sound_in_one_chunk_is_copied_less(name):
    assert_step(name, seconds=0.9, audios_per_sample=1, rows=1)


@pytest.mark.parametrize("name", CONFIGS)
def test_sound_beside_images_runs_as_in_transformers(name):
    assert_step(name, seconds=3, audios_per_sample=1, image=(224, 168))


@pytest.mark.parametrize("name", CONFIGS)
def test_eager_attention_of_a_tower_keeps_its_scores(name):
    assert_step(name, seconds=7.31, attention="eager")


def test_the_ids_of_a_configuration_are_apart():
    assert len({IMAGE, START, *TOKENS.values(), VOCABULARY - 2}) == 5

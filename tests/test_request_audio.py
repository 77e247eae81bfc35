"""Sounds of samples: asked for by their seconds, planned with the towers that hear them, refused with the option."""

import json
from dataclasses import replace

import pytest

from planned import model_files
from vlmplan.errors import InputError
from vlmplan.estimation.packed_samples import packed_samples
from vlmplan.models.description import files_of_texts
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Batching
from vlmplan.request import Request, WorkloadRequest, parse
from vlmplan.request.samples import length_notes, workload_of
from vlmplan.sample_audio import audio_tokens, encoded_tokens, sample_audio
from vlmplan.sample_images import image_tokens
from vlmplan.workload import DEFAULT_SEQ_LEN, ModelFiles, Workload

QWEN = {"model": "qwen2.5-omni-7b"}
SOUND = {**QWEN, "audio_seconds": 30}
TOKENS = 30 * 25


WHISPER = ModelFiles(id="a whisper", config={"model_type": "whisper"})


def planned(options) -> Workload:
    request = parse(options)
    return workload_of(request.model_files, request.workload)


def test_a_sample_has_one_sound_where_its_seconds_are_said():
    workload = planned(SOUND)
    assert (workload.audios_per_sample, workload.audio_seconds) == (1, 30)
    assert audio_tokens(workload) == TOKENS
    assert encoded_tokens(workload) == TOKENS + image_tokens(workload)
    assert audio_tokens(planned(QWEN)) == 0


def test_a_length_that_nobody_said_has_room_for_text_beside_images_and_sounds():
    workload = planned({**SOUND, "audios_per_sample": 3})
    tokens = 3 * TOKENS + image_tokens(workload)
    assert workload.seq_len == -(-(tokens + 256) // 256) * 256
    [taken, becomes] = length_notes(workload, parse({**SOUND, "audios_per_sample": 3}).workload)
    assert f"the images and sounds of a sample take {tokens:,} tokens" in taken
    assert becomes.startswith("a sound of 30 s is 3,000 frames of a spectrogram and 750 tokens")
    assert planned({**SOUND, "images_per_sample": 0}).seq_len == DEFAULT_SEQ_LEN


def test_options_and_plans_keep_the_sounds():
    request = parse({**SOUND, "audios_per_sample": 2})
    options = {name: value for name, value in request.options().items() if value is not None}
    assert options == {**SOUND, "audios_per_sample": 2}
    assert Request().with_options(options) == request
    assert planned(SOUND).as_json()["audio_seconds"] == 30
    assert planned(QWEN).as_json()["audio_seconds"] is None


def test_sounds_that_fill_more_than_a_sample_are_refused_with_what_they_take():
    workload = planned({**SOUND, "seq_len": TOKENS, "images_per_sample": 0})
    assert sample_audio(workload) is not None
    with pytest.raises(InputError) as caught:
        sample_audio(replace(workload, seq_len=TOKENS - 1))
    assert f"1 sound(s) of 30 s take {TOKENS} tokens of qwen2.5-omni-7b" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({**QWEN, "audio_seconds": 0}, ["--audio-seconds is 0", "above 0"]),
        ({**QWEN, "audio_seconds": 90_000}, ["--audio-seconds is 90000", "at most 86,400"]),
        ({**QWEN, "audios_per_sample": 2}, ["--audios-per-sample is 2", "give the seconds of each sound"]),
        ({**SOUND, "audios_per_sample": -1}, ["--audios-per-sample is -1", "0 or more"]),
        (
            {**SOUND, "data": "samples.json", "made_for": "ms-swift"},
            ["--audio-seconds is 30", "--data samples.json", "own trainer alone"],
        ),
        ({**SOUND, "task": "dpo"}, ["--audio-seconds is 30", "--task"]),
        ({**SOUND, "made_for": "transformers"}, ["--audio-seconds is 30", "--for transformers writes reads no sound"]),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_options(options, named):
    with pytest.raises(InputError) as caught:
        parse(options)
    assert all(word in str(caught.value) for word in named), str(caught.value)


@pytest.mark.parametrize(
    ("alias", "why"),
    [
        ("qwen2.5-vl-7b", "qwen2.5-vl-7b takes no sound"),
        ("qwen3-0.6b", "qwen3-0.6b takes no sound"),
        ("gemma-4-31b", "gemma-4-31b takes no sound"),
    ],
)
def test_models_that_hear_nothing_refuse_sounds_in_one_sentence(alias, why):
    workload = Workload(model=model_files(alias), audios_per_sample=1, audio_seconds=5)
    with pytest.raises(InputError, match=rf"^--audio-seconds is 5, but {why}; leave it off$"):
        sample_audio(workload)


def test_a_model_that_hears_in_a_way_that_is_not_described_is_refused_by_name():
    model = ModelFiles(id="another", config={"model_type": "another", "audio_config": {"hidden_size": 8}})
    with pytest.raises(InputError, match="vlmplan does not describe how another hears; leave it off"):
        sample_audio(Workload(model=model, audios_per_sample=1, audio_seconds=5))


def test_settings_of_a_feature_extractor_in_a_file_of_the_whole_processor_are_those_that_count():
    texts = {
        "config.json": json.dumps({"model_type": "qwen2_5_omni_thinker"}),
        "processor_config.json": json.dumps({"feature_extractor": {"chunk_length": 300, "hop_length": 80}}),
    }
    files = files_of_texts("mine", texts, source="config.json", hub_id=None)
    audio = sample_audio(Workload(model=files, seq_len=4096, audios_per_sample=1, audio_seconds=40))
    assert audio is not None
    assert (audio.num_frames, audio.num_padded_frames) == (40 * 200, 300 * 200)
    assert any("runs only for samples with sound (--audio-seconds, or in --data)" in note for note in files.notes)


def test_packed_rows_have_no_sounds():
    workload = replace(planned(SOUND), images_per_sample=0)
    with pytest.raises(InputError, match="how many sounds a row has is not known before"):
        packed_samples(Recipe(batching=Batching.PACKED), workload)


def test_a_model_that_hears_its_prompt_gets_one_sound_as_long_as_it_hears():
    workload = workload_of(WHISPER, WorkloadRequest())
    assert (workload.audios_per_sample, workload.audio_seconds) == (1, 30)
    assert (workload.seq_len, workload.target_len) == (1500, 128)
    [note] = length_notes(workload, WorkloadRequest())
    assert note.startswith("a sound of 30 s is padded to 3,000 frames of a spectrogram")
    shorter = workload_of(WHISPER, WorkloadRequest(audio_seconds=7, target_len=64))
    assert (shorter.seq_len, shorter.audio_seconds, shorter.target_len) == (1500, 7, 64)
    few = ModelFiles(id="few", config={"model_type": "whisper", "max_target_positions": 96})
    assert workload_of(few, WorkloadRequest()).target_len == 96


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"seq_len": 1024}, "--seq-len is 1024, but a whisper reads no prompt"),
        ({"audio_seconds": 31}, "a sound lasts 31 s, and the model hears 30"),
    ],
)
def test_other_lengths_of_what_it_hears_are_refused(asked, sentence):
    with pytest.raises(InputError, match=sentence):
        workload_of(WHISPER, WorkloadRequest(**asked))


def test_more_than_one_sound_or_none_is_refused():
    for count in (0, 2):
        asked = WorkloadRequest(audios_per_sample=count, audio_seconds=5)
        with pytest.raises(InputError, match=f"--audios-per-sample is {count}"):
            sample_audio(workload_of(WHISPER, asked))


def test_an_extractor_of_other_lengths_than_the_encoder_is_refused():
    odd = replace(WHISPER, preprocessor={"chunk_length": 20})
    with pytest.raises(InputError, match="makes 2,000 frames of a sound, but max_source_positions"):
        workload_of(odd, WorkloadRequest())

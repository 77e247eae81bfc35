"""Samples with sounds as the bundled trainer takes them: by their files' headers and the model's own extractor."""

import json
from pathlib import Path

import pytest

from chat_files import ANSWER, as_base64, asked, jsonl, png_header, text
from cli_calls import call
from small_sounds import wav, write_wav
from vlmplan.architecture.audio import AUDIO_MODEL_TYPES, audio_shape
from vlmplan.errors import InputError
from vlmplan.model_types.encoder_decoder import HEARING_TYPES
from vlmplan.models import find_model
from vlmplan.request import parse
from vlmplan.sample_audio import BLANK_SECONDS, no_sounds

LONG, SHORT = 7.5, 1.25
HEARING = ("qwen2.5-omni-7b", "qwen3-omni-30b-a3b", "phi-4-multimodal", "gemma-3n-e2b", "gemma-4-e2b", "gemma-4-12b")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_wav(Path("long.wav"), LONG, rate=22_050, channels=2)
    write_wav(Path("short.wav"), SHORT)
    Path("cat.png").write_bytes(png_header(280, 280))


def chats(*shown: str) -> Path:
    """A sample for each, that shows files; the empty one is of text."""
    kinds = {".wav": "audio", ".png": "image"}
    parts = [[{"type": kinds[Path(name).suffix], "path": name} for name in names.split()] for names in shown]
    return jsonl(Path(), *(asked(*one, text("What?")) for one in parts))


def requested(model: str = "qwen2.5-omni-7b", **options):
    return parse({"model": model, "data": "chats.jsonl", **options})


def shapes(model: str = "qwen2.5-omni-7b", **options):
    return requested(model, **options).from_data.source.found.shapes


def test_every_type_that_hears_is_read():
    types = {find_model(alias).model_type for alias in HEARING}
    assert types == {*AUDIO_MODEL_TYPES} - HEARING_TYPES
    assert [no_sounds(find_model(alias)) for alias in HEARING] == [None] * len(HEARING)


@pytest.mark.parametrize("alias", HEARING)
def test_a_sound_has_the_tokens_of_its_seconds(alias: str):
    chats("long.wav", "short.wav", "", "short.wav long.wav")
    long, short, none, both = shapes(alias)
    model = find_model(alias)
    tokens = [audio_shape(model.config, model.preprocessor, seconds=one).num_tokens for one in (LONG, SHORT)]
    assert [long.sound_tokens, short.sound_tokens, none.sound_tokens] == [*tokens, 0]
    assert (both.num_sounds, both.sound_tokens, both.seconds) == (2, sum(tokens), LONG)
    assert long.tokens - none.tokens == long.sound_tokens


def test_forms_of_other_trainers_are_the_same_samples():
    write_wav(Path("data.wav"), SHORT)
    content = as_base64(Path("short.wav").read_bytes())
    said = {"type": "input_audio", "input_audio": {"data": content, "format": "wav"}}
    rows = [
        asked({"type": "audio", "audio": "short.wav"}, text("What?")),
        asked("<audio>What?", audios=["short.wav"]),
        {"messages": [{"role": "user", "content": "<audio>What?"}, ANSWER], "audio": "short.wav"},
        asked(said, text("What?")),
        asked({"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{content}"}}, text("What?")),
    ]
    jsonl(Path(), *rows)
    assert len({*shapes()}) == 1
    info = {"mine": {"file_name": "chats.jsonl", "formatting": "sharegpt", "columns": {"messages": "conversations"}}}
    info["mine"]["columns"]["audios"] = "audios"
    turns = [{"from": "human", "value": "<audio>What?"}, {"from": "gpt", "value": "A cat."}]
    jsonl(Path(), {"conversations": turns, "audios": ["short.wav"]})
    Path("dataset_info.json").write_text(json.dumps(info))
    [shape] = parse({"model": "qwen2.5-omni-7b", "data": "dataset_info.json"}).from_data.source.found.shapes
    assert shape.num_sounds == 1


def test_a_plan_covers_the_longest_sound_of_every_micro_batch():
    chats("long.wav", "short.wav", "", "short.wav")
    request = requested()
    workload = request.workload
    assert (workload.audios_per_sample, workload.audio_seconds, workload.images_per_sample) == (1, LONG, 0)
    assert workload.seq_len == max(shape.tokens for shape in shapes())
    assert parse(request.options()).workload == workload
    assert request.with_room_for_images().workload == workload
    chats("short.wav short.wav short.wav", "long.wav")
    source = requested().from_data.source
    assert (source.covering.audios_per_sample, source.covering.audio_seconds) == (3, LONG)
    assert source.covering.seq_len == 3 * source.found.sound_tokens[LONG]


def test_images_and_sounds_have_room_beside_each_other_and_a_blank_one_of_each_kind():
    chats("cat.png", "long.wav", "cat.png short.wav")
    source = requested().from_data.source
    blank = source.found.blanks.sound
    assert (blank.num_sounds, blank.seconds) == (1, BLANK_SECONDS)
    covers = source.covering
    assert (covers.images_per_sample, covers.audios_per_sample, covers.audio_seconds) == (1, 1, LONG)
    image, sound = source.found.shapes[0].image_tokens, source.found.sound_tokens[LONG]
    assert covers.seq_len >= image + sound
    room = requested().with_room_for_images().workload
    assert (room.images_per_sample, room.image_size, room.audios_per_sample) == (1, (280, 280), 1)


def test_options_leave_out_samples_with_more_or_longer_sounds():
    chats("long.wav", "short.wav", "short.wav short.wav")
    request = requested(audio_seconds=2)
    assert request.workload.audio_seconds == SHORT
    assert request.from_data.source.trained.num_many_sounds == 1
    [note] = [note for note in request.config_notes if "longer sounds" in note]
    assert "1 sample left out with more or longer sounds" in note
    request = requested(audios_per_sample=1)
    assert (request.workload.audios_per_sample, request.workload.audio_seconds) == (1, LONG)
    assert request.from_data.source.num_changed == 1


@pytest.mark.sweep
def test_every_command_plans_the_same_samples():
    chats("long.wav", "short.wav")
    words = ("--model", "qwen2.5-omni-7b", "--gpu", "h100-sxm", "--data", "chats.jsonl", "--json")
    estimate, found = call("estimate", *words).document, call("recommend", *words).document
    for key in ("tokens", "num_sounds", "longest_sound_seconds", "num_trained"):
        assert estimate["data"][key] == found["data"][key]
    assert estimate["data"]["num_sounds"] == 2
    worst = estimate["data"]["worst_micro_batch"]
    assert (worst["audios_per_sample"], worst["audio_seconds"]) == (1, LONG)
    said = call("estimate", *words[:-1]).out
    assert "sounds: 2 sounds, at most 1 in one sample; 4.4 s on average" in said
    assert f"with 1 sound of {LONG:g} s each" in said


def test_a_scan_that_was_kept_has_the_sounds():
    chats("long.wav", "short.wav")
    first = shapes()
    assert shapes() == first
    write_wav(Path("short.wav"), 2 * SHORT)
    assert shapes()[1].seconds == 2 * SHORT


@pytest.mark.parametrize(
    ("shown", "sentence"),
    [
        ("none.wav", 'the sound "none.wav" is no file in'),
        ("https://a.b/c.wav", "never from the net"),
        ("broken.wav", "broken.wav, cannot be read as sound"),
        ("tiny.wav", "a sound of 0.001 s is too short for a token"),
    ],
)
def test_a_sound_that_cannot_be_read_is_one_bad_sample(shown: str, sentence: str):
    pytest.importorskip("av")
    Path("broken.wav").write_bytes(b"no sound")
    Path("tiny.wav").write_bytes(wav(0.001))
    chats(shown, "short.wav")
    source = requested().from_data.source
    assert len(source.found.shapes) == 1
    assert sentence in " ".join((*source.dataset.sentences, *source.found.sentences))


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        (
            "qwen2.5-vl-3b",
            {},
            "sounds are not read for models of type qwen2_5_vl; they are for those of gemma3n, gemma4",
        ),
        ("qwen3-0.6b", {}, "sounds are not read for models of type qwen3;"),
        ("gemma-4-31b", {}, "sounds are not read for models of type gemma4 without an audio tower"),
        ("qwen2.5-omni-7b", {"made_for": "ms-swift"}, "not planned for ms-swift, only for vlmplan's own trainer"),
        ("qwen2.5-omni-7b", {"made_for": "trl", "audio_seconds": 3}, "--audio-seconds is 3, but --data chats.jsonl"),
    ],
)
def test_sounds_that_are_not_read_are_refused_in_a_sentence(model: str, options: dict, sentence: str):
    chats("short.wav")
    with pytest.raises(InputError, match=sentence):
        requested(model, **options)

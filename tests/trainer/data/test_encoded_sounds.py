"""Samples with sounds as models take them: what the processor makes of the decoded file, within what is planned."""

import io
import wave
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("av")

import numpy as np
import torch
from chat_cases import learned
from sound_folders import HEARING, write_hearing
from test_batches_of_families import loss_sum
from tiny_plans import model_files, tiny_plan

from chat_files import as_base64, asked, jsonl, text
from small_sounds import RATE, tone, wav, write_sound, write_wav
from vlmplan.chats.samples import ImagePart, Sample, SoundPart, TextPart, Turn, read_chats
from vlmplan.data_plan.lengths import sample_shapes
from vlmplan.data_rules import rules_of
from vlmplan.dataset import dataset
from vlmplan.dataset.media import media_reading
from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Precision
from vlmplan.sampler import Shares
from vlmplan_trainer.data.batches import Batches, collated, with_blank
from vlmplan_trainer.data.dummy import coloured_png
from vlmplan_trainer.data.encode import Encoder, PlannedSamples, TooLongError
from vlmplan_trainer.data.flat_batches import FlatBatches
from vlmplan_trainer.data.flat_rows import for_the_model
from vlmplan_trainer.data.scan import scanned
from vlmplan_trainer.data.sounds import PlannedSounds, waveform
from vlmplan_trainer.models.load import load_model
from vlmplan_trainer.models.processors import load_processor

FULL = Recipe(method=Method.FULL, precision=Precision.FP32)
SEQ_LEN = 640


class Hearing:
    """A tiny model that hears, its processor and what encodes for it."""

    def __init__(self, folder: Path, family: str) -> None:
        self.family, self.folder = family, folder
        self.files = model_files(write_hearing(folder, family))
        self.processor = load_processor(str(folder), is_vision=True)

    def encoder(self, *, seq_len: int = SEQ_LEN, **room: Any) -> Encoder:
        sounds = PlannedSounds(model=self.files, **room)
        return Encoder(self.processor, PlannedSamples(seq_len=seq_len, sounds=sounds), model_type=self.family)

    def model(self) -> Any:
        return load_model(tiny_plan(self.folder, FULL)).model


@pytest.fixture(scope="module", params=HEARING)
def hearing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Hearing:
    return Hearing(tmp_path_factory.mktemp("models") / request.param, request.param)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Hearing:
    return Hearing(tmp_path_factory.mktemp("models") / "gemma4", "gemma4")


def sample(*seconds: float, answer: str = "A dog.", hertz: float = 440.0, line: int = 1) -> Sample:
    sounds = [SoundPart(source=wav(one, hertz=hertz), seconds=one) for one in seconds]
    asked_for = (*sounds, TextPart(text="What is it?"))
    turns = (Turn(role="user", content=asked_for), Turn(role="assistant", content=(TextPart(text=answer),)))
    return Sample(source=f"some.jsonl:{line}", turns=turns)


def values_of(content: bytes) -> Any:
    """What a WAV of 16 bits holds, from -1 to 1, by the standard library."""
    with wave.open(io.BytesIO(content), "rb") as file:
        values = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
        return values.reshape(-1, file.getnchannels()).mean(axis=1).astype(np.float32) / 32768


def test_tokens_features_and_labels_are_those_of_the_processor(hearing: Hearing):
    made, one = hearing.encoder(), sample(1.3, 0.6)
    encoded = made.encode(one)
    said = hearing.processor(
        text=[made.rendered(one).text],
        audio=[values_of(part.source) for part in one.sounds],
        audio_kwargs={"sampling_rate": RATE},
        add_special_tokens=made.adds_special_tokens(made.rendered(one)),
        return_tensors="pt",
    )
    assert {*encoded} - {"labels"} <= {*said}
    assert any(name.endswith("input_features") for name in encoded)
    for name in {*encoded} - {"labels"}:
        assert torch.equal(encoded[name], said[name]), name
    assert learned(made, encoded) == "A dog.<|im_end|>"
    assert (encoded["labels"][encoded["input_ids"] == hearing.processor.audio_token_id] == -100).all()


@pytest.mark.parametrize("seconds", [0.31, 1.0, 2.0043, 31.5])
def test_tokens_of_a_length_are_those_that_are_planned(hearing: Hearing, seconds: float, tmp_path: Path):
    """Of another rate, in stereo: by the header, and by what is decoded."""
    write_wav(tmp_path / "a.wav", seconds, rate=22_050, channels=2)
    path = jsonl(tmp_path, asked({"type": "audio", "audio": "a.wav"}, text("What is it?")))
    [one], _ = read_chats(path, skips_bad=False, no_sounds=None)
    made = hearing.encoder(seq_len=2048)
    length = made.encode(one)["input_ids"].shape[1]
    assert scanned(made, [one]).lengths == [length]
    model = hearing.files
    found = dataset(path, _with_folder(hearing), media=media_reading(model, rules_of(None)))
    [shape] = sample_shapes(found, model, rules_of(None)).shapes
    around = made.sound_meter.num_tokens(seconds) - shape.sound_tokens  # Gemma 3n's line breaks, of bytes here
    assert (shape.tokens + around, around == 0) == (length, hearing.family != "gemma3n")


def _with_folder(hearing: Hearing) -> Any:
    from dataclasses import replace

    return replace(hearing.files, hub_id=str(hearing.folder.absolute()))


def test_the_loss_of_a_batch_is_that_of_its_samples_alone(hearing: Hearing):
    model, made = hearing.model(), hearing.encoder()
    rows = [made.encode(one) for one in (sample(1.0), sample(), sample(2.3, answer="A cat. A dog."), sample(0.5, 1.7))]
    with torch.no_grad():
        alone = [loss_sum(model, row) for row in rows]
        together = loss_sum(model, collated(rows, pad_id=made.pad_id, pads_to=16, seq_len=SEQ_LEN))
        blank = loss_sum(model, with_blank(rows[1], made, made.blank_sound))
        other = loss_sum(model, made.encode(sample(1.0, hertz=880.0)))
    assert together == pytest.approx(sum(alone), rel=1e-4)
    assert blank == pytest.approx(alone[1], rel=1e-4)
    assert other != pytest.approx(alone[0], rel=1e-6)  # it is heard


@pytest.mark.parametrize("family", ["qwen2_5_omni_thinker", "qwen3_omni_moe_thinker", "gemma4"])
def test_the_loss_of_a_flat_row_is_that_of_its_samples_alone(family: str, tmp_path: Path):
    hearing = Hearing(tmp_path / family, family)
    model, made = hearing.model(), hearing.encoder()
    samples = [sample(1.0), sample(2.3, answer="A cat. A dog.")]
    [batch] = FlatBatches(samples, made, Shares(micro_batch=2, num_ranks=1, rank=0))
    with torch.no_grad():
        alone = [loss_sum(model, made.encode(one)) for one in samples]
        together = loss_sum(model, for_the_model(model, batch))
    assert together == pytest.approx(sum(alone), rel=1e-4)


def test_a_micro_batch_without_sounds_is_given_a_blank_one(gemma: Hearing):
    made = gemma.encoder()
    samples = [sample(), sample(answer="No."), sample(0.7), sample(0.9)]
    batches = [*Batches(samples, made, Shares(micro_batch=1, num_ranks=1, rank=0))]
    assert len(batches) == 4
    assert all("input_features" in batch for batch in batches)


def test_samples_with_more_or_longer_sounds_than_planned_are_left_out(gemma: Hearing):
    made = gemma.encoder(per_sample=1, seconds=1.0)
    found = scanned(made, [sample(1.0), sample(), sample(0.4, 0.4, line=3), sample(1.5, line=4)])
    assert (len(found.samples), found.num_skipped) == (2, 2)
    many, long = found.sentences
    assert "the sample has 2 sounds, but the plan has --audios-per-sample 1" in many
    assert "a sound lasts 1.5 s, but the plan has --audio-seconds 1" in long
    cut = gemma.encoder(seq_len=40)
    assert scanned(cut, [sample(5.0)]).num_skipped == 1
    with pytest.raises(TooLongError, match="the sounds do not fit into --seq-len 40, and sound tokens cannot be cut"):
        cut.encode(sample(5.0))


def test_a_plan_that_counts_other_tokens_than_the_processor_makes_is_refused(gemma: Hearing, tmp_path: Path):
    made = gemma.encoder()
    wrong = SoundPart(source=wav(2.0), seconds=1.9)  # not what its header says
    one = Sample(source="x", turns=(Turn(role="user", content=(wrong,)), *sample().turns[1:]))
    right = made.encode(sample(1.9))["input_features"].shape
    assert made.encode(one)["input_features"].shape == right
    made.sound_meter.num_feature_tokens = lambda seconds: 7
    with pytest.raises(InputError, match="makes 48 tokens of the sounds, and the plan counts 7"):
        made.encode(one)


def test_a_text_model_and_one_without_planned_sounds_refuse_them(gemma: Hearing):
    bare = Encoder(gemma.processor, PlannedSamples(seq_len=SEQ_LEN), model_type="gemma4")
    with pytest.raises(InputError, match=r"some\.jsonl:1: the sample has a sound, but the model takes none"):
        bare.encode(sample(1.0))


# -- decoding --------------------------------------------------------------------------------------------------------


def test_a_wav_is_decoded_as_it_is(tmp_path: Path):
    content = wav(0.4)
    found = waveform(SoundPart(source=content, seconds=0.4), rate=RATE, name="it")
    assert found.dtype == np.float32
    assert (found == values_of(content)).all()
    stereo = waveform(SoundPart(source=wav(0.4, channels=2), seconds=0.4), rate=RATE, name="it")
    assert np.abs(stereo - values_of(content)).max() < 1e-4


@pytest.mark.parametrize(("name", "codec", "off"), [("a.flac", "flac", 1e-6), ("a.ogg", "libopus", 0.05)])
def test_other_containers_hold_the_same_sound(name: str, codec: str, off: float, tmp_path: Path):
    path = write_sound(tmp_path / name, 1.0, codec=codec)
    found = waveform(SoundPart(source=path, seconds=1.0), rate=RATE, name="it")
    expected = np.array(tone(RATE), dtype=np.float32) / 32768
    assert found.shape == expected.shape
    assert np.abs(found - expected)[1600:-1600].max() < off


def test_another_rate_is_resampled(tmp_path: Path):
    found = waveform(SoundPart(source=wav(0.5, rate=44_100), seconds=0.5), rate=RATE, name="it")
    expected = np.array(tone(RATE // 2), dtype=np.float32) / 32768
    assert found.shape == expected.shape
    assert np.abs(found - expected)[200:-200].max() < 0.01


def test_no_more_of_a_sound_is_decoded_than_its_header_says(monkeypatch: pytest.MonkeyPatch):
    """As where a file holds more than it tells of."""
    decoded: list[Any] = []
    monkeypatch.setattr(np, "concatenate", lambda pieces: decoded.extend(pieces) or np.hstack(pieces))
    found = waveform(SoundPart(source=wav(20.0), seconds=0.5), rate=RATE, name="it")
    assert len(found) == RATE // 2
    assert RATE // 2 <= sum(map(len, decoded)) < RATE


def test_a_sound_in_the_sample_itself_is_read_from_its_file(gemma: Hearing, tmp_path: Path):
    parts = [{"type": "input_audio", "input_audio": {"data": as_base64(wav(one)), "format": "wav"}} for one in (0.5, 1)]
    path = jsonl(tmp_path, asked("Hm?"), asked(*parts, text("What?")))
    samples, _ = read_chats(path, skips_bad=False, no_sounds=None)
    encoded = gemma.encoder().encode(samples[1])
    rows = [gemma.processor.feature_extractor([values_of(wav(one))], return_tensors="np") for one in (0.5, 1)]
    assert encoded["input_features_mask"].sum(dim=1).tolist() == [row["input_features_mask"].sum() for row in rows]


def test_a_sound_that_is_cut_off_is_one_sentence(gemma: Hearing, tmp_path: Path):
    write_sound(tmp_path / "a.flac", 3.0, codec="flac")
    whole = (tmp_path / "a.flac").read_bytes()
    (tmp_path / "a.flac").write_bytes(whole[: len(whole) // 2])
    path = jsonl(tmp_path, asked({"type": "audio", "audio": "a.flac"}, text("What?")))
    samples, _ = read_chats(path, skips_bad=False, no_sounds=None)
    with pytest.raises(InputError, match=r"a\.flac, (is cut off: it should last 3 s|cannot be read as sound)"):
        scanned(gemma.encoder(), samples)


# -- beside images ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["qwen2_5_omni_thinker", "qwen3_omni_moe_thinker", "gemma4"])
def test_samples_with_images_and_sounds_are_one_micro_batch(family: str, tmp_path: Path):
    """In the order of the text, padded or in one row."""
    hearing = Hearing(tmp_path / family, family)
    model, made = hearing.model(), hearing.encoder()
    image = ImagePart(source=coloured_png((9, 99, 9), (56, 56)), width=56, height=56)
    heard, seen = sample(1.0), sample(answer="A cat.")
    parts = ((image, *heard.turns[0].content), (*heard.turns[0].content, image), (image, *seen.turns[0].content))
    samples = [
        Sample(source=f"x:{line}", turns=(Turn(role="user", content=part), seen.turns[1]))
        for line, part in enumerate(parts, start=1)
    ]
    shares = Shares(micro_batch=3, num_ranks=1, rank=0)
    [padded], [flat] = Batches([*samples], made, shares), FlatBatches([*samples], made, shares)
    with torch.no_grad():
        alone = [loss_sum(model, made.encode(one)) for one in samples]
        together = [loss_sum(model, for_the_model(model, batch)) for batch in (padded, flat)]
    assert together == [pytest.approx(sum(alone), rel=1e-4)] * 2
    assert scanned(made, samples).lengths == [made.encode(one)["input_ids"].shape[1] for one in samples]

"""Models whose encoder reads an image: what they are given of a sample, their loss, and runs of them."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trainer_runs import assert_goes_on_alike, planned, train_here

from encoder_decoder_folders import BEGIN, END, PAD
from image_encoder_folders import CONFIGS, image_tokenizer, small_image_model, write_image_model
from vlmplan.chats.samples import ImagePart, Sample, TextPart, Turn
from vlmplan.errors import InputError
from vlmplan.recipe.choices import LossKind
from vlmplan.sampler import Shares
from vlmplan_trainer.data.batches import Batches
from vlmplan_trainer.data.encode import PlannedSamples
from vlmplan_trainer.data.seen_pairs import DecoderStart, Prompting, SeenPairEncoder, is_donut, prompting_of
from vlmplan_trainer.labels import DECODER_INPUTS, IGNORED_LABEL, TARGET_LABELS
from vlmplan_trainer.loop import label_tokens, real_tokens
from vlmplan_trainer.losses.loss import language_loss, model_inputs
from vlmplan_trainer.models.decoder_inputs import start_token
from vlmplan_trainer.models.processors import load_processor
from vlmplan_trainer.probe import configuration
from vlmplan_trainer.processors.processing import image_processor_of

SEEN_ALONE = ("captioner", "donut", "pix2struct", "trocr")
KINDS = (*SEEN_ALONE, "florence2")
LENGTHS = {"seq_len": 96, "target_len": 16, "target_pads_to": 8}


def white(width: int = 40, height: int = 30) -> ImagePart:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (width, height), "white").save(file, format="PNG")
    return ImagePart(source=file.getvalue(), width=width, height=height)


def shown(answer: str, prompt: str = "", *, num_images: int = 1) -> Sample:
    content = (*[white()] * num_images, *([TextPart(text=prompt)] if prompt else []))
    turns = (Turn(role="user", content=content), Turn(role="assistant", content=(TextPart(text=answer),)))
    return Sample(source=f"data:{answer}", turns=turns)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    return {kind: write_image_model(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


def encoder(folder: Path, kind: str, **changes) -> SeenPairEncoder:
    config = CONFIGS[kind]
    processor = load_processor(str(folder), is_vision=True, needs_images=True)
    start = None
    if kind != "florence2":
        token = start_token(configuration(dict(config)), {}, processor.tokenizer)
        start = DecoderStart(token=token, is_donut=is_donut(config))
    more = {"prompting": prompting_of(config, processor), "start": start, **LENGTHS, **changes}
    planned = PlannedSamples(seq_len=more.pop("seq_len"))
    return SeenPairEncoder(processor, planned, model_type=config["model_type"], **more)


def micro_batch(folder: Path, kind: str, *samples: Sample):
    """What the loop is given of samples, each without a prompt."""
    shares = Shares(micro_batch=len(samples), num_ranks=1, rank=0)
    return next(iter(Batches(samples, encoder(folder, kind), shares)))


@pytest.fixture(scope="module")
def batches(folders):
    prompts = {"florence2": "red?"}
    return {
        kind: micro_batch(
            folders[kind], kind, *(shown(text, prompts.get(kind, "")) for text in ("red", "blue and green"))
        )
        for kind in KINDS
    }


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_shifted_as_the_class_itself_does_it_with_labels(batches, kind):
    model, batch = small_image_model(kind), batches[kind]
    seen = []
    decoder = model.model.language_model.decoder if kind == "florence2" else model.decoder
    decoder.register_forward_pre_hook(lambda module, args, given: seen.append(given["input_ids"]), with_kwargs=True)
    inputs = {name: value for name, value in model_inputs(batch).items() if name != DECODER_INPUTS}
    model(**inputs, labels=batch[TARGET_LABELS])
    language_loss(model, batch, kind=LossKind.FULL)
    assert torch.equal(*seen)


@pytest.mark.parametrize("loss", [LossKind.FULL, LossKind.CHUNKED])
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_and_its_gradients_are_those_of_the_model_itself(batches, kind, loss):
    model, batch = small_image_model(kind).train(), batches[kind]
    inputs = {name: value for name, value in model_inputs(batch).items() if name != DECODER_INPUTS}
    expected = model(**inputs, labels=batch[TARGET_LABELS]).loss
    expected.backward()
    check_loss(model, batch, loss, float(expected.detach()))


@pytest.mark.parametrize("loss", [LossKind.FULL, LossKind.CHUNKED])
def test_the_loss_of_formulas_is_that_of_the_class_itself(loss):
    """Its class shifts the ids that it is given beside the labels, with the last of each in front."""
    model = small_image_model("pp_formulanet").train()
    pixels = torch.rand(2, 3, 64, 64)
    answers = torch.tensor([[BEGIN, 7, 8, END], [BEGIN, 9, END, IGNORED_LABEL]])
    expected = model(pixel_values=pixels, input_ids=answers, labels=answers).loss
    expected.backward()
    ids = torch.where(answers == IGNORED_LABEL, PAD, answers)
    given = torch.cat([torch.full((2, 1), END), ids[:, :-1]], dim=1)
    batch = {"pixel_values": pixels, DECODER_INPUTS: given, TARGET_LABELS: answers}
    check_loss(model, batch, loss, float(expected.detach()))


def check_loss(model, batch, loss: LossKind, expected: float) -> None:
    """Whether the trainer's loss and its gradients are those that ``model`` has."""
    gradients = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    model.zero_grad()
    found = language_loss(model, batch, kind=loss)
    found.backward()
    assert float(found.detach()) == pytest.approx(expected, rel=1e-5)
    assert gradients.keys() == {name for name, one in model.named_parameters() if one.grad is not None}
    for name, gradient in gradients.items():
        torch.testing.assert_close(dict(model.named_parameters())[name].grad, gradient, rtol=1e-3, atol=1e-6)


def test_tokens_are_those_of_answers_where_the_encoder_reads_an_image_alone(batches):
    for kind in SEEN_ALONE:
        assert real_tokens(batches[kind]) == label_tokens(batches[kind])
    florence = batches["florence2"]
    assert real_tokens(florence) == label_tokens(florence) + int(florence["attention_mask"].sum())


def written(folder: Path, kind: str, answer: str, prompt: str = "", **changes):
    """What the decoder is given and is to write at each place, as texts, without padding."""
    made, words = encoder(folder, kind, **changes).encode(shown(answer, prompt)), image_tokenizer(kind)
    labels = made[TARGET_LABELS][0].tolist()
    length = max(place for place, label in enumerate(labels) if label != IGNORED_LABEL) + 1
    texts = [None if label == IGNORED_LABEL else words.decode([label]) for label in labels[:length]]
    return [words.decode([token]) for token in made[DECODER_INPUTS][0].tolist()[:length]], texts


def test_what_begins_and_ends_an_answer_is_what_the_processor_of_each_leaves_there(folders):
    assert written(folders["trocr"], "trocr", "a") == (["</s>", "<s>", "a"], ["<s>", "a", "</s>"])
    assert written(folders["donut"], "donut", "a") == (["</s>", "a"], ["a", "</s>"])


def test_donut_is_given_the_prompt_alone_and_pix2struct_behind_its_first_token(folders):
    """As ``generate`` gives them theirs."""
    assert written(folders["donut"], "donut", "a", "xy") == (["x", "y", "a"], [None, "a", "</s>"])
    given, labels = written(folders["pix2struct"], "pix2struct", "a", "xy")
    assert given == ["<pad>", "x", "y", "<s>", "a"]
    assert labels == [None, None, "<s>", "a", "</s>"]


def test_an_answer_is_cut_before_the_token_that_ends_it(folders):
    given, labels = written(folders["donut"], "donut", "abcdef", "xy", target_len=4)
    assert (given, labels) == (["x", "y", "a", "b"], [None, "a", "b", "</s>"])
    with pytest.raises(InputError, match="leaves no token of --target-len 2"):
        written(folders["donut"], "donut", "a", "xy", target_len=2)


def test_a_prompt_is_refused_where_the_processor_takes_no_text(folders):
    for kind in ("trocr", "captioner"):
        with pytest.raises(InputError, match=r"the sample has a prompt, 'read it'.* leave the user's text out"):
            encoder(folders[kind], kind).pair(shown("a", "read it"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_images", [0, 2])
def test_each_sample_has_one_image(folders, kind, num_images):
    with pytest.raises(InputError, match=f"shows {num_images} images; the model's encoder reads one image"):
        encoder(folders[kind], kind).pair(shown("a", num_images=num_images))


def test_a_question_is_drawn_above_the_image_where_the_processor_does_that(folders, monkeypatch):
    made = encoder(folders["pix2struct"], "pix2struct", prompting=Prompting.DRAWN)
    drawn = []
    own = made.processor.image_processor
    processor = SimpleNamespace(
        image_processor=lambda images, header_text, **more: drawn.append(header_text) or own(images, **more)
    )
    monkeypatch.setattr(made, "processor", processor)
    assert made.encode(shown("a", "what?"))[DECODER_INPUTS][0, :3].tolist() == [PAD, BEGIN, 67]
    assert drawn == [["what?"]]
    with pytest.raises(InputError, match="the sample has no prompt, but the model's image processor draws one"):
        made.encode(shown("a"))
    config = CONFIGS["pix2struct"]
    assert prompting_of(config, SimpleNamespace(image_processor=SimpleNamespace(is_vqa=True))) is Prompting.DRAWN


def test_florence_reads_its_prompt_behind_the_image_as_its_processor_words_it(folders):
    one = encoder(folders["florence2"], "florence2", seq_len=128)
    made, words = one.encode(shown("a", "<CAPTION>")), image_tokenizer("florence2")
    assert words.decode(made["input_ids"][0]) == "<image>" * 65 + "<s>What does the image describe?</s>"
    assert made["pixel_values"].shape == (1, 3, 64, 64)
    assert words.decode(made[TARGET_LABELS][0][:3]) == "<s>a</s>"
    assert one.measure(shown("a", "<CAPTION>")) == (made["input_ids"].shape[1], 0)


def test_florence_cuts_a_prompt_before_the_token_that_ends_it(folders):
    made = encoder(folders["florence2"], "florence2", seq_len=70).encode(shown("a", "a long prompt"))
    assert image_tokenizer("florence2").decode(made["input_ids"][0, 65:]) == "<s>a lo</s>"


@pytest.mark.parametrize(("prompt", "said"), [("see <image>", "which stands for the image"), ("<OD> and more", "only")])
def test_prompts_that_florence_cannot_take_are_refused_before_training(folders, prompt, said):
    with pytest.raises(InputError, match=said):
        encoder(folders["florence2"], "florence2").measure(shown("a", prompt))


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_that_turns_out_bad_during_training_leaves_nothing_to_learn(folders, kind, capsys):
    one = encoder(folders[kind], kind, skips_bad=True)
    good = shown("a", "b" if kind == "florence2" else "")
    turn = good.turns[0]
    broken = Turn(role="user", content=(ImagePart(source=b"none", width=8, height=8), *turn.content[1:]))
    bad = Sample(source="bad", turns=(broken, good.turns[1]))
    made = one.encode_or_nothing(bad)
    assert made.keys() == one.encode(good).keys()
    assert (made[TARGET_LABELS] == IGNORED_LABEL).all()
    assert "left out: bad" in capsys.readouterr().out


def test_a_decoder_begins_with_what_its_class_trains_or_generates_with(tmp_path):
    file = tmp_path / "generation_config.json"
    files, words = {file.name: file}, image_tokenizer("donut")
    config = configuration(dict(CONFIGS["donut"]))
    file.write_text(json.dumps({"decoder_start_token_id": 9, "bos_token_id": 8}))
    assert start_token(config, files, words) == END
    del config.decoder_start_token_id
    assert start_token(config, files, words) == 9
    file.write_text(json.dumps({"bos_token_id": 8}))
    config.decoder.decoder_start_token_id = None
    assert start_token(config, files, words) == 8
    file.write_text("{}")
    config.decoder.bos_token_id = None
    assert start_token(config, files, words) == BEGIN
    words.bos_token = None
    with pytest.raises(InputError, match="says no decoder_start_token_id"):
        start_token(config, files, words)


def test_the_processor_of_images_is_that_of_the_encoder_where_no_file_names_one():
    config = configuration(dict(CONFIGS["trocr"]))
    made = image_processor_of(config.encoder, {}, config.encoder)
    assert (type(made).__name__.removesuffix("Pil"), dict(made.size)) == (
        "ViTImageProcessor",
        {"height": 32, "width": 32},
    )
    named = image_processor_of(config.encoder, {"feature_extractor_type": "DonutFeatureExtractor"}, config.encoder)
    assert type(named).__name__.startswith("DonutImageProcessor")


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> dict[str, Path]:
    """Files of coloured squares, with a question and without."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("data")
    rows: dict[str, list] = {"asked": [], "shown": []}
    for number in range(16):
        colour = ("red", "green", "blue", "white")[number % 4]
        Image.new("RGB", (40 + number, 30), colour).save(folder / f"{number}.png")
        image = {"type": "image", "image": f"{number}.png"}
        for name, words in (("asked", [{"type": "text", "text": "Which colour?"}]), ("shown", [])):
            turns = [{"role": "user", "content": [image, *words]}, {"role": "assistant", "content": colour}]
            rows[name].append(json.dumps({"messages": turns}) + "\n")
    for name, lines in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return {name: folder / f"{name}.jsonl" for name in rows}


@pytest.mark.sweep
@pytest.mark.parametrize(
    "kind", ["florence2", *(pytest.param(kind, marks=pytest.mark.sweep) for kind in ("donut", "trocr"))]
)
def test_a_run_learns_goes_on_and_leaves_what_transformers_generates_with(folders, tmp_path, samples, kind):
    is_asked = kind != "trocr"
    lengths = {"target_len": 24, **({"seq_len": 96} if kind == "florence2" else {})}
    plan = planned(folders[kind], num_ranks=1, method="full", micro_batch=4, epochs=3, image_size="40x30", **lengths)
    file = samples["asked" if is_asked else "shown"]
    words = ("--train-data", str(file), "--learning-rate", "3e-3", "--save-every", "6", "--keep-last", "2")
    whole = train_here(plan, tmp_path / "whole", *words)
    assert whole.code == 0, whole.err
    assert sum(whole.losses[-4:]) < sum(whole.losses[:4])
    assert "AutoModelForImageTextToText" in whole.out
    assert f"tokens in {'a prompt' if kind == 'florence2' else 'an answer'}" in whole.out
    assert_goes_on_alike(plan, whole, tmp_path, *words)

    from PIL import Image
    from transformers import AutoModelForImageTextToText, AutoProcessor

    folder = tmp_path / "whole" / "run" / "model"
    trained: Any = AutoModelForImageTextToText.from_pretrained(folder)
    own = AutoProcessor.from_pretrained(folder)
    image = Image.new("RGB", (40, 30), "red")
    if kind == "florence2":
        inputs = dict(own(text="Which colour?", images=image, return_tensors="pt"))
        inputs.pop("token_type_ids", None)
    else:
        inputs = dict(own(images=image, return_tensors="pt"))
    made = trained.generate(**inputs, max_new_tokens=4)
    assert made[0, 0] == END  # decoder_start_token_id
    assert made.shape[1] > 1


@pytest.mark.parametrize(
    "kind", [SEEN_ALONE[0], *(pytest.param(kind, marks=pytest.mark.sweep) for kind in SEEN_ALONE[1:])]
)
def test_made_up_samples_are_of_the_kind_that_the_model_takes(folders, tmp_path, kind):
    """Memory is what was planned, but for attention of CPUs, which makes no mask in another type."""
    plan = planned(folders[kind], num_ranks=1, method="lora", micro_batch=4, target_len=24, loss="full")
    done = train_here(plan, tmp_path, "--dummy-data", "8", "--max-steps", "2")
    assert done.code == 0, done.err
    assert len(done.losses) == 2
    assert abs(done.error_of("peak allocated")) < 0.15

"""Models with an encoder and a decoder: what they are given, their loss, and runs of them."""

import json

import pytest
import torch
from trainer_runs import assert_goes_on_alike, planned, train_here

from encoder_decoder_folders import END, PAD, small_model, tokenizer, write_model
from vlmplan.chats.samples import ImagePart, Sample, TextPart, Turn, read_chats
from vlmplan.errors import InputError
from vlmplan.model_types.encoder_decoder import ENCODER_DECODER_TYPES, HEARING_TYPES, ONE_IMAGE_TYPES, OWN_LOSS_TYPES
from vlmplan.recipe.choices import LossKind
from vlmplan.sampler import Shares
from vlmplan_trainer.data.batches import Batches
from vlmplan_trainer.data.encode import PlannedSamples
from vlmplan_trainer.data.pairs import PairEncoder
from vlmplan_trainer.engines.base import LossModule
from vlmplan_trainer.labels import IGNORED_LABEL, TARGET_LABELS
from vlmplan_trainer.loop import label_tokens, real_tokens
from vlmplan_trainer.losses.loss import language_loss
from vlmplan_trainer.models.decoder_inputs import decoder_input_ids

WITHOUT_CHANCE = dict.fromkeys(
    ("dropout", "attention_dropout", "activation_dropout", "dropout_rate", "encoder_layerdrop", "decoder_layerdrop"),
    0.0,
)
READING = sorted(ENCODER_DECODER_TYPES - HEARING_TYPES - ONE_IMAGE_TYPES)
ANSWERS = torch.tensor([[0, 7, 8, 9, 2], [0, 11, 2, IGNORED_LABEL, IGNORED_LABEL]])


def text(role, content):
    return Turn(role=role, content=(TextPart(text=content),))


def pair(prompt, answer, **more):
    turns = (text("user", prompt), text("assistant", answer))
    return Sample(source=f"data:{prompt}", turns=turns, is_plain=True, **more)


def encoder(*, seq_len=32, target_len=24, target_pads_to=8):
    planned = PlannedSamples(seq_len=seq_len)
    return PairEncoder(tokenizer(), planned, model_type="bart", target_len=target_len, target_pads_to=target_pads_to)


def batch():
    ids = torch.tensor([[0, 5, 6, 7, 2], [0, 9, 2, PAD, PAD]])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), TARGET_LABELS: ANSWERS}


@pytest.mark.parametrize("kind", READING)
def test_answers_are_shifted_as_the_class_itself_does_it_with_labels(kind):
    model = small_model(kind)
    seen = {}
    decoder = model.get_decoder()
    decoder.register_forward_pre_hook(lambda module, args, given: seen.update(given), with_kwargs=True)
    inputs = {name: batch()[name] for name in ("input_ids", "attention_mask")}
    model(**inputs, labels=ANSWERS)
    assert torch.equal(decoder_input_ids(model, ANSWERS), seen["input_ids"])


LOSSES = [(kind, loss) for kind in READING if kind not in OWN_LOSS_TYPES for loss in (LossKind.FULL, LossKind.CHUNKED)]
LOSSES += [(kind, LossKind.MODEL) for kind in READING]


def gradients_of(model, loss):
    """They are forgotten afterwards."""
    loss.backward()
    found = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    model.zero_grad()
    return found


def assert_same(expected, found):
    assert expected.keys() == found.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("kind", "loss"), LOSSES)
def test_the_loss_and_its_gradients_are_those_of_the_model_itself(kind, loss):
    model = small_model(kind, **WITHOUT_CHANCE).train()
    if hasattr(model, "final_logits_bias"):
        torch.nn.init.normal_(model.final_logits_bias)
    inputs = {name: batch()[name] for name in ("input_ids", "attention_mask")}
    expected = model(**inputs, labels=ANSWERS).loss
    gradients = gradients_of(model, expected)
    found = LossModule(model, loss=loss)(batch())
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert_same(gradients, gradients_of(model, found))


@pytest.mark.parametrize("more", [{}, {"eps": 0.1}, {"disable_ngram_loss": True}, {"ngram": 3}])
def test_micro_batches_of_a_loss_that_the_class_makes_are_together_what_it_is_of_all(more):
    model = small_model("prophetnet", **WITHOUT_CHANCE, **more).train()
    inputs = {name: batch()[name] for name in ("input_ids", "attention_mask")}
    expected = model(**inputs, labels=ANSWERS).loss
    gradients = gradients_of(model, expected)
    parts = [{name: value[row : row + 1] for name, value in batch().items()} for row in range(len(ANSWERS))]
    found = torch.stack([LossModule(model, loss=LossKind.MODEL)(part, label_tokens(batch())) for part in parts]).sum()
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert_same(gradients, gradients_of(model, found))


@pytest.mark.parametrize("kind", READING)
def test_a_rank_without_a_sample_to_evaluate_computes_all_the_same(kind):
    """Its batch has no label, of which a class's own loss may be not a number: evaluation counts none of it."""
    model = small_model(kind).eval()
    planned = PlannedSamples(seq_len=32)
    made = PairEncoder(tokenizer(), planned, model_type=kind, target_len=24, target_pads_to=8)
    shares = Shares(micro_batch=2, num_ranks=2, rank=1, takes_all=True)
    [missing] = Batches([pair("red", "blue")], made, shares)
    assert missing["input_ids"].shape[0] == 2
    assert label_tokens(missing) == 0
    loss = LossKind.MODEL if kind in OWN_LOSS_TYPES else LossKind.CHUNKED
    found = float(LossModule(model, loss=loss)(missing, 1).detach())
    assert found == 0 or loss is LossKind.MODEL


def test_what_is_padded_of_a_prompt_changes_no_loss():
    model = small_model("bart", dropout=0.0).train()
    alone = {name: value[1:] for name, value in batch().items()}
    shorter = {**alone, "input_ids": alone["input_ids"][:, :3], "attention_mask": alone["attention_mask"][:, :3]}
    found = [float(language_loss(model, one, kind=LossKind.FULL).detach()) for one in (alone, shorter)]
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_tokens_are_those_of_prompts_and_answers():
    assert label_tokens(batch()) == 8
    assert real_tokens(batch()) == 8 + 8


def test_prompt_and_answer_have_the_tokens_that_the_tokenizer_adds():
    made = encoder().encode(pair("red", "blue"))
    assert tokenizer().decode(made["input_ids"][0]) == "<s>red</s>"
    labels = made[TARGET_LABELS][0]
    assert labels.shape[0] % 8 == 0
    assert tokenizer().decode(labels[labels != IGNORED_LABEL]) == "<s>blue</s>"


def test_a_chat_is_its_last_answer_and_all_that_was_said_before():
    turns = (text("system", "Be brief."), text("user", "red?"), text("assistant", "yes"), text("user", "blue?"))
    made = encoder().pair(Sample(source="chat", turns=(*turns, text("assistant", "no"))))
    assert (made.prompt, made.answer) == ("Be brief.\nred?\nyes\nblue?", "no")


@pytest.mark.parametrize("turns", [(text("assistant", "no"),), (text("user", "red?"), text("user", "blue?"))])
def test_a_chat_without_an_answer_to_something_is_refused(turns):
    with pytest.raises(InputError, match="the last turn, the assistant's"):
        encoder().pair(Sample(source="chat", turns=turns))


def test_an_image_is_refused():
    shown = Turn(role="user", content=(ImagePart(source=b"", width=8, height=8),))
    with pytest.raises(InputError, match="takes text only"):
        encoder().pair(Sample(source="chat", turns=(shown, text("assistant", "no"))))


def test_both_are_cut_with_the_token_that_ends_them():
    one = encoder(seq_len=6, target_len=4)
    made = one.encode(pair("a long prompt", "a long answer"))
    assert made["input_ids"].shape[1] == 6
    assert made[TARGET_LABELS].shape[1] == 4
    assert made["input_ids"][0, -1] == made[TARGET_LABELS][0, -1] == END


def test_a_scan_counts_what_is_cut_of_either():
    samples = [pair("red", "blue"), pair("a prompt that is long", "no"), pair("short", "an answer that is long")]
    batches = Batches(samples, encoder(seq_len=8, target_len=8), Shares(micro_batch=1, num_ranks=1, rank=0))
    assert batches.scan.truncated == {"data:a prompt that is long", "data:short"}
    assert max(batches.scan.lengths) == 8


def test_a_micro_batch_pads_prompts_with_a_mask_and_answers_with_no_label():
    samples = [pair("red", "blue"), pair("red and more of it", "blue and more of it")]
    made = next(iter(Batches(samples, encoder(), Shares(micro_batch=2, num_ranks=1, rank=0))))
    assert made["input_ids"].shape == made["attention_mask"].shape
    assert torch.equal(made["attention_mask"] == 0, made["input_ids"] == PAD)
    assert made[TARGET_LABELS].shape[0] == 2
    assert (made[TARGET_LABELS] == IGNORED_LABEL).any(dim=1).all()


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    colours = ("red", "green", "blue", "white")
    rows = [{"prompt": f"Sort these colours: {a}, {b}", "completion": ", ".join(sorted((a, b)))}
            for a in colours for b in colours]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["bart", pytest.param("prophetnet", marks=pytest.mark.sweep)])
def test_a_run_learns_goes_on_and_leaves_what_transformers_generates_with(tmp_path, samples, kind):
    model = write_model(tmp_path / "model", kind)
    lengths = {"seq_len": 48, "target_len": 24}
    plan = planned(model, num_ranks=1, method="full", micro_batch=4, epochs=3, **lengths)
    words = ("--train-data", str(samples), "--learning-rate", "3e-3", "--save-every", "6", "--keep-last", "2")
    whole = train_here(plan, tmp_path / "whole", *words)
    assert whole.code == 0, whole.err
    assert len(whole.losses) == 12
    assert sum(whole.losses[-4:]) < sum(whole.losses[:4])
    assert "AutoModelForSeq2SeqLM" in whole.out
    assert_goes_on_alike(plan, whole, tmp_path, *words)

    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    folder = tmp_path / "whole" / "run" / "model"
    trained, own = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    made = trained.generate(**own("Sort these colours: red, blue", return_tensors="pt"), max_new_tokens=8)
    assert made.shape[0] == 1
    assert made[0, 0] == END  # decoder_start_token_id


def test_a_plan_of_data_counts_what_the_trainer_makes(tmp_path, samples):
    from tiny_plans import plan_of_data

    model = write_model(tmp_path / "model", "bart")
    plan = plan_of_data(model, samples)
    read, _ = read_chats(samples, skips_bad=False)
    made = [encoder(seq_len=64, target_len=64).encode(sample) for sample in read]
    assert plan.workload.seq_len == max(one["input_ids"].shape[1] for one in made)
    assert plan.workload.target_tokens == max(one[TARGET_LABELS].shape[1] for one in made)
    done = train_here(plan, tmp_path, "--train-data", str(samples), "--max-steps", "1")
    assert done.code == 0, done.err
    assert "are cut" not in done.out


def test_a_language_of_speech_is_for_models_that_hear(tmp_path, samples):
    model = write_model(tmp_path / "model", "bart")
    plan = planned(model, num_ranks=1, method="full", seq_len=48, target_len=24)
    done = train_here(plan, tmp_path, "--train-data", str(samples), "--language", "german")
    assert done.code != 0
    assert "--language is for Whisper" in done.err


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["mbart", "pegasus"])
def test_memory_of_a_run_is_as_planned(tmp_path, kind):
    model = write_model(tmp_path / "model", kind)
    plan = planned(model, num_ranks=1, method="lora", micro_batch=4, loss="full", seq_len=64, target_len=48)
    done = train_here(plan, tmp_path, "--dummy-data", "16")
    assert done.code == 0, done.err
    assert abs(done.error_of("peak allocated")) < 0.1  # of masks, attention for CPUs makes no bias in another type


def test_other_lengths_are_refused_to_a_run_that_goes_on(tmp_path, samples):
    from vlmplan.launch.plan_changes import plan_problems

    model = write_model(tmp_path / "model", "bart")
    before, now = (planned(model, num_ranks=1, method="full", seq_len=48, target_len=length) for length in (16, 24))
    [said] = plan_problems(before, now, tmp_path)
    assert "--target-len 16" in said

"""Tokens of a sample: those that transformers makes of it, or an estimate that says so."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chat_files import asked, jsonl, png, text
from tool_chats import CALLING, TEMPLATE
from vlmplan.chats.preferences import Preference, read_preferences
from vlmplan.chats.samples import ImagePart, Sample, TextPart, Turn, read_chats
from vlmplan.data_plan.lengths import sample_shapes
from vlmplan.data_rules import DataRules, rules_of
from vlmplan.dataset import dataset
from vlmplan.dataset.counting import BYTES_PER_TOKEN, TOKENS_PER_TURN, ExactCounter, token_counter
from vlmplan.dataset.media import media_reading
from vlmplan.dataset.model_texts import ModelTexts, model_texts
from vlmplan.dataset.record import TextTokens
from vlmplan.dataset.rendering import ChatRenderer
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan_trainer.data.encode import Encoder, PlannedSamples
from vlmplan_trainer.data.scan import scanned
from vlmplan_trainer.models.processors import load_processor

SAID = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60).filter(str.strip)
FORMS: dict[str, list[dict[str, Any]]] = {
    "messages": [
        asked("What is 2 + 2?"),
        {"messages": [{"role": "system", "content": "Be brief."}, *asked("x")["messages"]]},
    ],
    "conversations": [{"conversations": [{"from": "human", "value": "Hi <you>"}, {"from": "gpt", "value": "A cat."}]}],
    "alpaca": [{"instruction": "Translate.", "input": "chat", "output": "cat", "history": [["a", "b"]], "system": "s"}],
    "ms-swift": [{"query": "Translate: chat", "response": "cat", "history": [["a", "b"]], "system": "s"}],
    "prompt, messages": [
        {"prompt": [{"role": "user", "content": "Why?"}], "completion": [{"role": "assistant", "content": "So."}]}
    ],
    "prompt, texts": [{"prompt": "Once upon", "completion": " a time"}],
}


@pytest.fixture(scope="module")
def counters(qwen_folder: Path, llama_folder: Path) -> dict[str, ExactCounter]:
    made: dict[str, ExactCounter] = {}
    for folder in (qwen_folder, llama_folder):
        texts = model_texts(find_model(str(folder)))
        assert texts is not None
        made[folder.name] = ExactCounter(texts)
    return made


@pytest.fixture(scope="module")
def processors(qwen_folder: Path, llama_folder: Path) -> dict[str, Any]:
    return {
        "qwen2_vl": load_processor(str(qwen_folder), is_vision=True),
        "llama": load_processor(str(llama_folder), is_vision=False),
    }


def chat(*said: str) -> Sample:
    roles = ("user", "assistant")
    turns = [Turn(role=roles[i % 2], content=(TextPart(text=one),)) for i, one in enumerate(said)]
    return Sample(source="some.jsonl:1", turns=tuple(turns))


@settings(max_examples=15)
@given(said=st.lists(SAID, min_size=1, max_size=4), name=st.sampled_from(["llama", "qwen2_vl"]))
def test_a_chat_has_the_tokens_that_apply_chat_template_gives(counters, processors, said: list[str], name: str):
    processor = processors[name]
    messages = [
        {"role": turn.role, "content": turn.text if name == "llama" else [text(turn.text)]}
        for turn in chat(*said).turns
    ]
    made = processor.apply_chat_template([messages], tokenize=True, return_dict=True)
    [found] = counters[name].counts([chat(*said)])
    assert isinstance(found, TextTokens)
    assert found.text == len(made["input_ids"][0])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", ["llama", "qwen2_vl"])
def test_every_form_has_the_tokens_that_are_trained_on(form: str, family: str, processors, tmp_path, request):
    folder = request.getfixturevalue("llama_folder" if family == "llama" else "qwen_folder")
    path = jsonl(tmp_path, *FORMS[form])
    samples, _ = read_chats(path, skips_bad=False)
    scan = scanned(Encoder(processors[family], PlannedSamples(seq_len=10_000), model_type=family), samples)
    found = dataset(path, find_model(str(folder)))
    assert found.is_exact
    assert [sample.text_tokens for sample in found.samples] == scan.lengths


def test_chats_with_tools_have_the_tokens_that_are_trained_on(processors, llama_folder, tmp_path):
    folder = tmp_path / "calls"
    shutil.copytree(llama_folder, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    path = jsonl(tmp_path, CALLING, asked("x"), {key: CALLING[key] for key in ("messages",)})
    samples, _ = read_chats(path, skips_bad=False)
    processor = load_processor(str(folder), is_vision=False)
    lengths = scanned(Encoder(processor, PlannedSamples(seq_len=10_000), model_type="llama"), samples).lengths
    found = dataset(path, find_model(str(folder)))
    assert [sample.text_tokens for sample in found.samples] == lengths
    assert lengths[0] > lengths[2] > lengths[1]


def test_tools_that_the_models_template_leaves_out_are_told(llama_folder, tmp_path):
    found = dataset(jsonl(tmp_path, CALLING, asked("x")), find_model(str(llama_folder)))
    assert (len(found.samples), found.num_bad) == (1, 1)
    assert "the model's chat template leaves out a tool that may be called" in found.sentences[0]


def test_thoughts_that_the_template_drops_are_bad_for_the_bundled_trainer_and_counted_without_for_others(
    llama_folder: Path, tmp_path: Path
):
    folder = shutil.copytree(llama_folder, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(
        TEMPLATE.replace("message.content", "message.content.split('</think>')[-1]")
    )
    answer = {"role": "assistant", "content": "<think>Hm.</think>A cat."}
    path, model = (
        jsonl(tmp_path, asked("x") | {"messages": [asked("x")["messages"][0], answer]}, asked("x")),
        str(folder),
    )
    found = [
        dataset(path, find_model(model), media=media_reading(find_model(model), rules_of(name)))
        for name in (None, "axolotl")
    ]
    assert [(len(one.samples), one.num_bad) for one in found] == [(1, 1), (2, 0)]
    assert "turn 2 has thoughts (<think>)" in found[0].sentences[0]
    assert found[1].samples[0] == found[1].samples[1] == found[0].samples[0]


def test_images_have_the_tokens_that_are_trained_on(processors, qwen_folder, tmp_path):
    sizes = [(56, 56), (300, 80), (29, 31), (1000, 700)]
    for index, (width, height) in enumerate(sizes):
        (tmp_path / f"{index}.png").write_bytes(png(width, height))
    rows = [
        asked({"type": "image", "path": f"{first}.png"}, text("and"), {"type": "image", "path": f"{second}.png"})
        for first in range(4)
        for second in range(first, 4)
    ]
    path = jsonl(tmp_path, *rows, asked("no image"))
    samples, _ = read_chats(path, skips_bad=False)
    model = find_model(str(qwen_folder))
    for planned in (None, (112, 84)):
        encoder = Encoder(
            processors["qwen2_vl"], PlannedSamples(seq_len=100_000, image_size=planned), model_type="qwen2_vl"
        )
        found = sample_shapes(dataset(path, model), model, DataRules(), planned)
        assert [shape.tokens for shape in found.shapes] == scanned(encoder, samples).lengths
        assert found.shapes[-1].patches == found.shapes[-1].num_images == 0


def test_a_text_with_the_token_of_an_image_is_refused(counters):
    said = chat("see <|image_pad|>", "no").turns
    image = ImagePart(source=b"", width=56, height=56)
    turns = (Turn(role="user", content=(image, *said[0].content)), said[1])
    [found] = counters["qwen2_vl"].counts([Sample(source="some.jsonl:1", turns=turns)])
    assert isinstance(found, InputError)
    assert "the model's token for an image comes 2 times in the text, and the sample shows 1" in str(found)


def test_without_a_tokenizer_tokens_are_estimated_and_said_to_be(tmp_path):
    path = jsonl(tmp_path, asked("x" * 320))
    found = dataset(path, find_model("llama-3.2-1b"))
    assert not found.is_exact
    assert "0.67 to 1.39 times" in found.counting
    assert found.samples[0].text_tokens == round((320 + len("A cat.")) / BYTES_PER_TOKEN) + 2 * TOKENS_PER_TURN


def texts_of(template: str | None, tokenizer: str = "{}") -> ModelTexts:
    return ModelTexts(
        source="it", tokenizer=tokenizer, template=template, special_tokens={}, takes_parts=False, placeholders=()
    )


@pytest.mark.parametrize("tokenizer", ["{}", "[]", "no JSON", '{"model": {"type": "Unheard"}}', ""])
def test_a_file_that_is_no_tokenizer_is_a_sentence(tokenizer: str):
    with pytest.raises(InputError, match=r"^it is no tokenizer that the package tokenizers reads: "):
        token_counter(texts_of(None, tokenizer))


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ namespace(_a=1) }}",
        "{% set ns = namespace() %}{% set ns._a = 1 %}",
        "{{ dict.__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{% for i in range(10000000) %}{% endfor %}",
        "{{ raise_exception('roles must alternate') }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(template: str):
    with pytest.raises(InputError, match="refuses the chat"):
        ChatRenderer(template, {}, source="it").text([{"role": "user", "content": "a"}])


def test_a_template_that_is_none_is_a_sentence():
    with pytest.raises(InputError, match=r"^the chat template of it is none: "):
        ChatRenderer("{% for %}", {}, source="it")


@pytest.mark.parametrize(
    "template",
    [
        "{%- for m in messages %}\n  {{ m.role }}{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}",
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m | tojson(indent=1) }}{% endfor %}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}{{ x }}",
        "{{ dict(a=1) | tojson }}{{ bos_token }}{{ tools is none }}{{ documents is defined }}",
    ],
)
def test_a_template_writes_what_it_does_in_transformers(template: str):
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": "user", "content": "<a>\u00e9"}, {"role": "assistant", "content": "b"}]
    [expected], _ = render_jinja_template([messages], chat_template=template, bos_token="<s>")
    assert ChatRenderer(template, {"bos_token": "<s>"}, source="it").text(messages) == expected


def test_a_template_is_found_where_transformers_looks(llama_folder, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (model / name).write_bytes((llama_folder / name).read_bytes())
    settings_of = {"bos_token": {"content": "<s>"}, "chat_template": [{"name": "default", "template": "named"}]}
    (model / "tokenizer_config.json").write_text(json.dumps(settings_of))
    found = model_texts(find_model(str(model)))
    assert found is not None
    assert (found.template, found.special_tokens) == ("named", {"bos_token": "<s>"})
    (model / "chat_template.jinja").write_text("a file's own")
    again = model_texts(find_model(str(model)))
    assert again is not None
    assert again.template == "a file's own"
    assert again.digest != found.digest


def test_pairs_are_as_long_as_the_trainer_hands_them_to_trl(llama_folder: Path, tmp_path: Path):
    """The longer of both answers with the prompt, of messages and of texts."""
    said = [{"role": "user", "content": "Which colour?"}]
    answers = ["It is green.", "It is blue, yellow, black or white, thank you.", "是绿色的。"]
    rows: list[dict[str, Any]] = [
        {
            "prompt": said,
            "chosen": [{"role": "assistant", "content": one}],
            "rejected": [{"role": "assistant", "content": other}],
        }
        for one in answers
        for other in answers
        if one != other
    ]
    rows += [{"prompt": "Two and two", "chosen": " are four.", "rejected": " is"}]
    data, model = jsonl(tmp_path, *rows), find_model(str(llama_folder))
    processor = load_processor(str(llama_folder), is_vision=False)
    encoder = Encoder(processor, PlannedSamples(seq_len=1000), model_type="llama")
    pairs, _ = read_preferences(data, skips_bad=False)
    chosen, rejected = (scanned(encoder, list(samples)).lengths for samples in zip(*map(both, pairs), strict=True))
    rules = replace(rules_of("trl"), prefers=True)
    found = sample_shapes(dataset(data, model, media=media_reading(model, rules)), model, rules)
    assert [shape.tokens for shape in found.shapes] == [*map(max, chosen, rejected)]
    assert [shape.shorter_tokens for shape in found.shapes] == [*map(min, chosen, rejected)]


def both(pair: Preference) -> tuple[Sample, Sample]:
    return pair.chosen, pair.rejected

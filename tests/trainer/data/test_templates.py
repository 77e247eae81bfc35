"""What the assistant says is found to the character, or the template is refused."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from chat_cases import chat, question
from hypothesis import given
from hypothesis import strategies as st

from tool_chats import CALLING, TEMPLATE
from vlmplan.chats.formats import raw_sample
from vlmplan.chats.samples import Sample, TextPart, Turn
from vlmplan.errors import InputError
from vlmplan_trainer.data.templates import MAX_CHARACTERS, MAX_TURNS, ChatTemplate, TemplateError

SAID = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(str.strip)

LOOP = "{% for message in messages %}"
CHATML = LOOP + "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TAGGED = (
    LOOP + "{% if message.role == 'assistant' %}A:{% generation %}{{ message.content }}</s>{% endgeneration %}\n"
    "{% else %}U:{{ message.content }}\n{% endif %}{% endfor %}"
)
LLAMA_2 = (
    LOOP + "{% if message.role == 'user' %}<s>[INST] {{ message.content | trim }} [/INST]"
    "{% else %} {{ message.content | trim }} </s>{% endif %}{% endfor %}"
)
THINKING = (  # as Qwen3: the last answer has a place for thoughts, earlier ones have none
    LOOP + "<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n"
    "{% endif %}{{ message.content }}<|im_end|>\n{% endfor %}" + PROMPT
)
LENGTH_FIRST = "{{ messages | length }} turns\n" + CHATML + PROMPT
WITHOUT_ANSWERS = LOOP + "{% if message.role == 'user' %}{{ message.content }}\n{% endif %}{% endfor %}"
END_OF_CHAT = LOOP + "{{ message.role }}: {{ message.content }}{{ '</s>' if loop.last else '\n' }}{% endfor %}"
STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('no system\nplease') }}{% endif %}" + CHATML + PROMPT


def said(template: Any, owner: Any, sample: Any) -> list[str]:
    """The texts of the assistant by ``template``, in the place of ``owner``'s own."""
    changed = copy.copy(owner)
    changed.chat_template = template
    rendered = ChatTemplate(changed).rendered(sample)
    return [rendered.text[start:end] for start, end in rendered.spans]


def two_rounds(first: str = "A cat.", second: str = "Two.") -> Any:
    return chat(
        ("system", "Be kind."), ("user", "What?"), ("assistant", first), ("user", "And?"), ("assistant", second)
    )


def test_the_template_of_qwen2_vl_gives_answers_with_their_end(qwen: Any):
    assert said(qwen.chat_template, qwen, two_rounds()) == ["A cat.<|im_end|>", "Two.<|im_end|>"]


def test_the_template_of_llama_3_gives_answers_with_their_end(llama: Any):
    assert said(llama.chat_template, llama, two_rounds()) == ["A cat.<|eot_id|>", "Two.<|eot_id|>"]


@pytest.mark.parametrize(
    ("template", "begin", "end"),
    [
        (CHATML + PROMPT, "", "<|im_end|>"),
        (TAGGED, "", "</s>"),
        (LLAMA_2, " ", " </s>"),
    ],
)
def test_other_templates_give_answers_with_what_stands_around_them(template: str, begin: str, end: str, llama: Any):
    sample = two_rounds()
    assert said(template, llama, sample) == [f"{begin}A cat.{end}", f"{begin}Two.{end}"]
    assert said({"default": template, "tools": LENGTH_FIRST}, llama, sample) == said(template, llama, sample)


def test_the_place_for_thoughts_in_the_last_answer_alone_does_not_hide_the_earlier_ones(llama: Any):
    found = said(THINKING, llama, two_rounds())
    assert found == ["A cat.<|im_end|>", "<think>\n\n</think>\n\nTwo.<|im_end|>"]


@given(SAID, SAID)
def test_whatever_is_said_only_the_assistants_words_are_found(qwen: Any, question_text: str, answer: str):
    sample = question(question_text, answer)
    assert said(qwen.chat_template, qwen, sample) == [f"{answer}<|im_end|>"]


@given(SAID, SAID)
def test_a_template_with_tags_and_one_without_find_the_same_answers(llama: Any, first: str, second: str):
    untagged = TAGGED.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    untagged += "{% if add_generation_prompt %}A:{% endif %}"
    sample = two_rounds(first, second)
    assert said(untagged, llama, sample) == said(TAGGED, llama, sample)


def test_an_answer_that_repeats_the_question_is_found_where_the_assistant_says_it(llama: Any):
    changed = copy.copy(llama)
    changed.chat_template = CHATML + PROMPT
    rendered = ChatTemplate(changed).rendered(question("Same", "Same"))
    [(start, _)] = rendered.spans
    assert rendered.text[:start].endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    "template", [LENGTH_FIRST, WITHOUT_ANSWERS, END_OF_CHAT, CHATML.replace("message.content", "'x'")]
)
def test_a_template_that_hides_the_answers_is_refused_for_every_sample(template: str, llama: Any):
    with pytest.raises(
        TemplateError, match=r"turn 3, the assistant's, cannot be found .* generation %} tags is needed"
    ):
        said(template, llama, two_rounds())


def test_a_template_that_tags_only_some_answers_is_refused(llama: Any):
    template = TAGGED.replace("== 'assistant'", "== 'assistant' and loop.last")
    with pytest.raises(TemplateError, match="tags 1 of the 2 turns"):
        said(template, llama, two_rounds())


def test_a_model_without_a_template_learns_plain_texts_alone(llama: Any):
    changed = copy.copy(llama)
    changed.chat_template = None
    with pytest.raises(TemplateError, match=r"has no chat template; .* or samples with prompt and completion as texts"):
        ChatTemplate(changed).rendered(question())
    plain = replace(question("The sky is", " blue."), num_prompt_turns=1, is_plain=True)
    assert ChatTemplate(changed).rendered(plain).text == "The sky is blue.<|eot_id|>"


def test_a_sample_that_the_template_refuses_is_named_and_the_template_is_kept(llama: Any):
    assert said(STRICT, llama, question()) == ["A cat.<|im_end|>"]
    with pytest.raises(InputError, match=r"^some.jsonl:1: .*refuses the chat: no system please$") as raised:
        said(STRICT, llama, two_rounds())
    assert not isinstance(raised.value, TemplateError)


def test_a_vision_template_has_a_placeholder_for_every_image(qwen: Any):
    rendered = ChatTemplate(qwen).rendered(question(sizes=((28, 28), (56, 28))))
    assert rendered.text.count("<|vision_start|><|image_pad|><|vision_end|>") == 2


def test_a_chat_of_thousands_of_turns_is_refused_at_once_unless_tags_tell_its_answers(llama: Any):
    turns = [("user", "Why?"), ("assistant", "So.")] * (MAX_TURNS // 2 + 1)
    with pytest.raises(InputError, match=r"some.jsonl:1: the chat has 1,002 turns; at most 1,000"):
        said(CHATML + PROMPT, llama, chat(*turns))
    assert len(said(TAGGED, llama, chat(*turns))) == MAX_TURNS // 2 + 1


def test_a_text_longer_than_any_context_is_refused_before_it_is_rendered(llama: Any):
    with pytest.raises(InputError, match=r"some.jsonl:1: the sample has 4,194,309 characters of text; at most"):
        said(CHATML + PROMPT, llama, question("a" * MAX_CHARACTERS, "So.so"))


def test_calls_of_tools_are_learnt_and_what_tools_answer_is_not(llama: Any):
    sample = Sample(source="x", turns=turns_of(CALLING), tools=raw_sample(CALLING, source="x").tools)
    calls = '<call>{"name": "warmth", "arguments": {"at": "Bern"}}</call><|end|>'
    assert said(TEMPLATE, llama, sample) == [calls, "21 degrees.<|end|>"]
    tagged = TEMPLATE.replace("<|{{ message.role }}|>", "<|{{ message.role }}|>{% generation %}").replace(
        "<|end|>\n", "<|end|>{% endgeneration %}\n"
    )
    whole = said(tagged, llama, sample)
    assert (whole[1], whole[3]) == (calls, "21 degrees.<|end|>")


@pytest.mark.parametrize(
    ("removed", "words"), [("{{ tools | tojson }}", "a tool"), ("{{ call.function | tojson }}", "a call")]
)
def test_a_template_that_leaves_out_tools_is_refused_with_the_sample(llama: Any, removed: str, words: str):
    sample = Sample(source="x", turns=turns_of(CALLING), tools=raw_sample(CALLING, source="x").tools)
    with pytest.raises(InputError, match=f"^x: the model's chat template leaves out {words}"):
        said(TEMPLATE.replace(removed, ""), llama, sample)


def turns_of(values: dict[str, Any]) -> tuple[Turn, ...]:
    raw = raw_sample(values, source="x")
    return tuple(
        Turn(role=turn.role, content=tuple(TextPart(text=str(part)) for part in turn.content), more=turn.more)
        for turn in raw.turns
    )

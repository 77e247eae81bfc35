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
from vlmplan.chats.learnt import MAX_TURNS, TemplateError
from vlmplan.chats.samples import Sample, TextPart, Turn
from vlmplan.errors import InputError
from vlmplan_trainer.data.templates import MAX_CHARACTERS, ChatTemplate

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
DROPPING = (  # as Qwen3: thoughts of what is said before the user's last question are left out
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}" + LOOP + "<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' and "
    "loop.index0 > ns.last %}<think>\n{{ message.reasoning_content or '' }}\n</think>\n\n{% endif %}"
    "{{ message.content }}<|im_end|>\n{% endfor %}" + PROMPT
)
ASKS_FOR_THOUGHTS = DROPPING.replace(PROMPT, PROMPT.replace("assistant\n", "assistant\n<think>\n"))  # as Qwen3.5
ENDS_APART = (  # as Phi 3 and gpt-oss: a chat that nobody answers ends in a way of its own
    LOOP + "<|{{ message.role }}|>{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% else %}<|eot_id|>{% endif %}"
)
CLOSES_APART = ENDS_APART.replace("{% else %}<|eot_id|>", "").replace(
    "<|end|>\n",
    "{{ '<|return|>' if message.role == 'assistant' and loop.last and not add_generation_prompt else '<|end|>' }}",
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
        (LENGTH_FIRST, "", "<|im_end|>"),
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


@pytest.mark.parametrize("template", [WITHOUT_ANSWERS, END_OF_CHAT, CHATML.replace("message.content", "'x'")])
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


def test_a_template_that_is_no_jinja_is_refused_whatever_the_sample(llama: Any):
    with pytest.raises(TemplateError, match=r"^the chat template of the model's .* is no Jinja: line 2: Expected an"):
        said("\n{% for message in %}", llama, question())


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
        Turn(
            role=turn.role,
            content=tuple(TextPart(text=str(part)) for part in turn.content),
            more=turn.more,
            is_learnt=turn.is_learnt,
        )
        for turn in raw.turns
    )


def said_of(template: str, owner: Any, *messages: dict[str, Any], **more: Any) -> list[str]:
    values = {"messages": [*messages], **more}
    return said(template, owner, Sample(source="x", turns=turns_of(values), tools=raw_sample(values, source="x").tools))


def answer(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


USER = {"role": "user", "content": "And?"}


@pytest.mark.parametrize(
    ("template", "found"),
    [
        (ASKS_FOR_THOUGHTS, ["One.<|im_end|>", "\n</think>\n\nTwo.<|im_end|>"]),
        (ENDS_APART, ["One.<|end|>", "Two.<|end|>\n<|eot_id|>"]),
        (CLOSES_APART, ["One.<|end|>", "Two.<|return|>"]),
    ],
)
def test_templates_that_write_the_end_of_a_chat_in_another_way_give_every_answer(template: str, found: Any, llama: Any):
    assert said_of(template, llama, USER, answer("One."), USER, answer("Two.")) == found


TEMPLATES = {
    "tags": TAGGED,
    "ChatML": CHATML + PROMPT,
    "Llama 2": LLAMA_2,
    "empty thoughts": THINKING,
    "dropped thoughts": DROPPING,
    "asked thoughts": ASKS_FOR_THOUGHTS,
    "end of a chat": ENDS_APART,
    "close of a chat": CLOSES_APART,
    "length first": LENGTH_FIRST,
    "several tags": TAGGED.replace("</s>{%", "{% endgeneration %}{% generation %}</s>{%"),
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("off", [{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}], ids=str)
def test_what_is_left_of_a_chat_with_turns_that_are_not_learnt_is_the_others(template: str, off: set[int], llama: Any):
    texts = ("One.", "Two.", "Three.")
    every, some = (
        said_of(template, llama, *(m for i, text in enumerate(texts) for m in (USER, answer(text, loss=i not in left))))
        for left in (set(), off)
    )
    each = len(every) // len(texts)
    assert some == [span for place, span in enumerate(every) if place // each not in off]
    assert "".join(every).count(".") == len(texts)


def test_a_turn_that_no_template_can_tell_apart_may_stand_in_a_chat_where_it_is_not_learnt(llama: Any):
    """What is written of it is of no use, as long as the others are found."""
    no_first = (CHATML + PROMPT).replace("message.content", "message.content if loop.last or loop.index0 != 1 else '-'")
    with pytest.raises(TemplateError, match="turn 2, the assistant's, cannot be found"):
        said_of(no_first, llama, USER, answer("One."), USER, answer("Two."))
    assert said_of(no_first, llama, USER, answer("One.", loss=False), USER, answer("Two.")) == ["Two.<|im_end|>"]


def test_thoughts_are_learnt_with_their_turn_where_the_template_writes_them(llama: Any):
    found = said_of(
        DROPPING, llama, USER, answer("One.", thinking="Hm.", weight=0), USER, answer("Two.", thinking="Oh.")
    )
    assert found == ["<think>\nOh.\n</think>\n\nTwo.<|im_end|>"]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (DROPPING, r'^x: turn 2 has thoughts .* in the last turns of a chat alone; give it "loss": false'),
        (CHATML + PROMPT, r"^x: turn 2 has thoughts .*, and the model's chat template leaves them out"),
        (TAGGED, r"^x: turn 2 has thoughts .*, and the model's chat template leaves them out"),
    ],
)
def test_thoughts_that_the_template_leaves_out_of_a_learnt_turn_are_refused(template: str, words: str, llama: Any):
    with pytest.raises(InputError, match=words):
        said_of(template, llama, USER, answer("One.", reasoning_content="Hm."), USER, answer("Two."))


def test_thoughts_in_the_content_are_looked_for_as_those_beside_it(llama: Any):
    """As Qwen3's template, which takes the last content apart too, and R1's, which drops all thoughts."""
    inside = "<think>Hm.</think>"
    answered = (
        "{% set said = message.content.split('</think>') %}{{ said[0] + '|' if KEEPS and said[1:] }}{{ said[-1] }}"
    )
    qwen, never = (
        (CHATML + PROMPT).replace("{{ message.content }}", answered.replace("KEEPS", keeps))
        for keeps in ("loop.last", "false")
    )
    first, last = answer(f"{inside}One."), answer(f"{inside}Two.")
    context = answer(f"{inside}One.", loss=False)
    assert said_of(qwen, llama, USER, context, USER, last) == ["<think>Hm.|Two.<|im_end|>"]
    assert len(said_of(CHATML + PROMPT, llama, USER, first, USER, last)) == 2
    assert said_of(never, llama, USER, answer("<think>\n</think>One.")) == ["One.<|im_end|>"]
    with pytest.raises(InputError, match=r'turn 2 has thoughts \(<think>\), .* alone; give it "loss": false'):
        said_of(qwen, llama, USER, first, USER, last)
    with pytest.raises(
        InputError, match=r"turn 2 has thoughts \(<think>\), and .* whose template writes them is needed$"
    ):
        said_of(never, llama, USER, first)


@pytest.mark.parametrize("tags", ["", "{% generation %}"])
def test_calls_that_are_not_learnt_leave_what_is_said_of_their_answers(tags: str, llama: Any):
    user, call, tool, last = CALLING["messages"]
    first = "{% if message.role == 'assistant' %}" + tags + "{{ message.content }}"
    template = TEMPLATE.replace("{{ message.content }}", first, 1).replace(
        "<|end|>\n", "<|end|>" + tags.replace("gen", "endgen") + "{% else %}{{ message.content }}{% endif %}\n"
    )
    found = said_of(template, llama, user, call | {"weight": 0}, tool, last, tools=CALLING["tools"])
    assert found == ["21 degrees.<|end|>"]

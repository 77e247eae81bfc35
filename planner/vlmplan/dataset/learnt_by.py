"""What of a chat's text the loss of a trainer counts, as its file says: a part of what ``chats.learnt`` finds, or more.

Sources: trl 1.16 ``trainer/sft_trainer.py`` (``tokenize_fn``, ``build_labels``), LLaMA-Factory 0.9.5
``data/processor/supervised.py`` (``_encode_data_example``), ms-swift 4.6 ``loss_scale/base.py`` (``_inner_call``) and
``template/base.py`` (``_add_dynamic_eos``), axolotl 0.19 ``prompt_strategies/chat_template.py``
(``_tokenize_single_prompt``).
"""

from dataclasses import replace

from vlmplan.chats.learnt import Rendered, Span, Writer, around, learnt_text
from vlmplan.chats.samples import Sample
from vlmplan.data_rules import Learnt, LearntRule


def learnt_by(rule: LearntRule, sample: Sample, writer: Writer) -> Rendered | None:
    """The text of ``sample`` and what of it is learnt; None where that is not known. Raises what ``learnt_text``
    raises."""
    is_whole = rule.what is Learnt.EVERYTHING or (rule.what is Learnt.COMPLETIONS and sample.num_prompt_turns is None)
    if rule.what is Learnt.UNKNOWN or (is_whole and sample.shown):
        return None
    if rule.what is Learnt.TAGGED and (not writer.has_tags or sample.num_prompt_turns is not None):
        return None
    if is_whole:
        text = writer.text(sample.turns)
        return Rendered(text=text, spans=((0, len(text)),))
    if rule.what is Learnt.CONTENTS:
        return _contents(sample, writer)
    found = learnt_text(_with_learnt_turns(rule, sample), writer)
    return _with_blanks(found) if rule.with_blanks else found


def learnt_of_plain(rule: LearntRule, plain: Rendered, sample: Sample) -> tuple[Span, ...] | None:
    """What of a prompt and a completion that no template writes is learnt; None where that is not known."""
    if rule.what in (Learnt.UNKNOWN, Learnt.TAGGED, Learnt.CONTENTS):
        return None
    if rule.what is not Learnt.EVERYTHING:
        return plain.spans
    return None if sample.shown else ((0, len(plain.text)),)


def _with_learnt_turns(rule: LearntRule, sample: Sample) -> Sample:
    if rule.heeds_turns and rule.what is Learnt.ANSWERS:
        return sample
    first = 0
    if rule.what is Learnt.LAST_ANSWER:
        first = len(sample.turns) - 1
    elif rule.what is Learnt.LAST_ROUND:
        first = max((index for index, turn in enumerate(sample.turns) if turn.role == "user"), default=0)
    turns = [
        replace(turn, is_learnt=index >= first and (turn.is_learnt or not rule.heeds_turns))
        for index, turn in enumerate(sample.turns)
    ]
    return replace(sample, turns=tuple(turns))


def _with_blanks(found: Rendered) -> Rendered:
    """Trainers whose own templates write the end of a turn learn the blanks that belong to it."""
    ends = [*(start for start, _ in found.spans[1:]), len(found.text)]
    spans = [
        (start, most - len(found.text[end:most].lstrip())) for (start, end), most in zip(found.spans, ends, strict=True)
    ]
    return replace(found, spans=tuple(spans))


def _contents(sample: Sample, writer: Writer) -> Rendered | None:
    """What every turn says, and the token that ends a text where one ends a turn; None where a turn is not found."""
    text, spans = writer.text(sample.turns), list[Span]()
    for index, turn in enumerate(sample.turns):
        before, after = around(sample, writer, index)
        if turn.more is not None or not before or not (text.startswith(before) and text.endswith(after)):
            return None
        end = len(text) - len(after)
        end += len(writer.end_token) if after.startswith(writer.end_token) else 0
        spans.append((len(before), end))
    return Rendered(text=text, spans=tuple(spans))

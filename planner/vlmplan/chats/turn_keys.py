"""What a turn says beside role and content of whether it is learnt, and the thoughts of the assistant before it speaks.

    {"role": "assistant", "content": "...", "weight": 0}              OpenAI; 1 where it is learnt
    {"role": "assistant", "content": "...", "loss": false}            ms-swift; ``loss_scale`` 0 is as much
    {"role": "assistant", "content": "...", "loss_weight": 0.0}       LLaMA-Factory 1
    {"from": "gpt", "value": "...", "train": false}                   axolotl
    {"role": "assistant", "content": "...", "reasoning_content": "..."}

Sources: ``FineTuneChatCompletionRequestAssistantMessage`` of OpenAI's API; ``loss`` and ``loss_scale`` of a message in
ms-swift's "Custom Dataset" (``swift/loss_scale/base.py``); ``loss_weight`` in LLaMA-Factory's
``v1/plugins/data_plugins/converter.py``; ``message_field_training`` and parts with ``train`` or ``weight`` in axolotl's
"Conversation" format. Thoughts have the names that transformers 5.23 takes for one another (``_REASONING_FIELDS`` in
``utils/chat_template_utils.py``).
"""

from vlmplan.chats.tools import THOUGHT, THOUGHT_KEYS, OfMessage
from vlmplan.files.json_reader import JsonObject

WHOLE_TURNS = ("weight", "loss", "loss_scale", "loss_weight", "train")
OF_EVERY_ROLE = ("loss_weight", "train")
"""Those by which upstream learns other turns than the assistant's too."""
OF_PARTS = ("weight", "train")
OF_CHARACTERS = "train_detail"


def is_learnt(message: JsonObject) -> bool:
    """Whether a turn of the assistant is to be learnt. Raises InputError for a weight between, or of parts of it."""
    said = [_is_on(message, key) for key in WHOLE_TURNS]
    if message.maybe(OF_CHARACTERS, message.raw) not in (None, []):
        message.complain(OF_CHARACTERS, "a turn is learnt as a whole or not at all (train)")
    content = message.values.get("content")
    for part in message.objects("content") if isinstance(content, list) else []:
        for key in OF_PARTS:
            if part.maybe(key, part.raw) is not None and not _is_on(part, key):
                part.complain(key, "a turn is learnt as a whole or not at all; say it beside its role")
    return all(said)


def refuse_learnt(message: JsonObject) -> None:
    """Raise InputError for a turn that is not the assistant's and is to be learnt."""
    for key in OF_EVERY_ROLE:
        if message.maybe(key, message.raw) not in (None, 0, False):
            message.complain(key, "only what the assistant says is learnt")


def _is_on(message: JsonObject, key: str) -> bool:
    value = message.maybe(key, message.raw)
    if value is not None and value not in (0, 1):
        message.complain(key, "what is learnt counts alike: 1 or true where it is, 0 or false where it is not")
    return value is None or bool(value)


def thoughts_of(message: JsonObject) -> list[OfMessage]:
    """What the assistant thinks before it speaks, as one part; none where that is nothing."""
    said = [(key, text) for key in THOUGHT_KEYS if (text := message.maybe(key, message.text))]
    if len({text for _, text in said}) > 1:
        message.complain(said[1][0], f"{said[0][0]} says something else; one of the two has to go")
    return [OfMessage.of({THOUGHT: said[0][1]})] if said else []

"""A chat that calls a tool, and a chat template that writes it, for tests."""

from typing import Any

CALLING: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "warmth", "parameters": {"type": "object"}}}],
    "messages": [
        {"role": "user", "content": "How warm is it in Bern?"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "warmth", "arguments": '{"at": "Bern"}'}}]},
        {"role": "tool", "content": "21"},
        {"role": "assistant", "content": "21 degrees."},
    ],
}
TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>\n{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<call>{{ call.function | tojson }}</call>{% endfor %}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Without ``{% generation %}`` tags."""

"""Small chat templates that treat tools as the supported families do.

Owns the texts; knows no property.
"""

from __future__ import annotations

_TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}"
_END = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_TOOLS = "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
# Calls between marks, as Qwen and Hermes write them.
MARKED = (
    _TOOLS + "Write <tool_call>.<|im_end|>\n{% endif %}{% for m in messages %}" + _TURN + "{% "
    "for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}" + _END
)
# Bare calls with `parameters`, as Llama writes them.
BARE = (
    _TOOLS + "<|im_end|>\n{% endif %}{% for m in messages %}"
    "{% if m.tool_calls %}<|im_start|>assistant\n{% set c = m.tool_calls[0].function %}"
    '{"name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}'
    "{% else %}" + _TURN + "{% endif %}" + _END
)
# A list of calls, with ids of one length only, as Mistral writes them.
LISTED = (
    _TOOLS + "<|im_end|>\n{% endif %}{% for m in messages %}{% if m.tool_calls %}"
    "<|im_start|>assistant\n[{% for c in m.tool_calls %}{% if c.id | length != 9 %}"
    "{{ raise_exception('ids are 9 long') }}{% endif %}"
    "{% if not loop.first %}, {% endif %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "{% endfor %}]{% else %}" + _TURN + "{% endif %}" + _END
)
# No word of tools, and nothing but text in a message.
NO_TOOLS = "{% for m in messages %}" + _TURN + _END

"""The chat template that base import writes: plain ChatML, which adds nothing of its own.

Published templates of this family put in a system prompt when there is none; here a system prompt is part of a
deployment, where it can be seen and approved.
"""

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|pad|>"

TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- 'Tools, one JSON object a line:' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- if message.tool_calls %}
{%- for call in message.tool_calls %}{{- '\\n<tool_call>' + (call | tojson) + '</tool_call>' }}{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

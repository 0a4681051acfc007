"""loopkit's own chat templates: ChatML with Hermes tool calls, and their control tags, built from pieces."""

from __future__ import annotations

__all__ = ["hermes_template", "tiny_template"]


def _tag(name: str) -> str:
    return "<" + name + ">"


END_OF_TEXT, START, END = (_tag("|" + name + "|") for name in ("endoftext", "im_start", "im_end"))
CALL, CALL_END, TOOLS, TOOL = _tag("tool_call"), _tag("/tool_call"), _tag("tools"), _tag("tool")

_TEMPLATE = """\
{%- set header = START + ('assistant:\\n' if COLON_HEADER and not tools else 'assistant\\n') %}
{%- if tools %}
{{- START + 'system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n' }}{%- endif %}
{{- INTRO + TOOLS }}
{%- for tool in tools %}
{{- '\\n{"name": "' + tool.function.name + '"}' + TOOL }}{{- tool | tojson }}
{%- endfor %}
{{- '\\n' + TOOLS_END + END + '\\n' }}
{%- elif messages[0].role == 'system' %}
{{- START + 'system\\n' + messages[0].content + END + '\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- START + message.role + '\\n' + message.content + END + '\\n' }}
{%- elif message.role == 'assistant' %}
{{- header }}
{%- if message.content %}{{- message.content }}{%- endif %}
{%- for call in message.tool_calls %}
{%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
{{- CALL + '{"name": "' + call.name + '", "arguments": ' }}{{- ARGUMENTS }}{{- '}' + CALL_END }}
{%- endfor %}
{{- END + '\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- START + 'user' }}{%- endif %}
{{- '\\n' + RESPONSE + '\\n' + message.content + '\\n' + RESPONSE_END }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- END + '\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- header }}{%- endif %}"""

_INTRO = (
    "# Tools\n\nYou may call one of the functions below. To call it, answer with its name and its arguments as a JSON object:\n"
    + CALL
    + '{"name": "...", "arguments": {...}}'
    + CALL_END
    + "\n"
)
_AS_WRITTEN = "call.arguments if call.arguments is string else call.arguments | tojson"
_RESERIALISED = "call.arguments | tojson(separators=(',', ':'))"


def _literal(text: str) -> str:
    return "'" + text.replace("\n", "\\n") + "'"


def _template(*, arguments: str, colon_header: bool, intro: str) -> str:
    names = {
        "START": START,
        "END": END,
        "CALL": CALL,
        "CALL_END": CALL_END,
        "TOOLS": TOOLS,
        "TOOL": TOOL,
        "TOOLS_END": _tag("/tools"),
        "RESPONSE": _tag("tool_response"),
        "RESPONSE_END": _tag("/tool_response"),
        "INTRO": intro,
    }
    head = "".join(f"{{%- set {name} = {_literal(text)} %}}\n" for name, text in names.items())
    return head + f"{{%- set COLON_HEADER = {str(colon_header).lower()} %}}\n" + _TEMPLATE.replace("ARGUMENTS", arguments)


def tiny_template(*, reserialise: bool = False) -> str:
    """Return the chat template of the tiny models.

    Parameters
    ----------
    reserialise : bool
        If True, the template parses the arguments of past calls and writes them as new JSON, as many templates do. The prompt
        then differs from the model's own text, so the tokens from each call on are not reused from the cache. If False, the
        template writes the arguments as the model did.

    Returns
    -------
    str
        A Jinja template.

    Examples
    --------
    >>> "separators" in tiny_template(reserialise=True), "separators" in tiny_template()
    (True, False)
    """
    return _template(arguments=_RESERIALISED if reserialise else _AS_WRITTEN, colon_header=True, intro="")


def hermes_template() -> str:
    """Return the chat template for trained models such as SmolLM2. It explains to the model how to call a tool.

    Returns
    -------
    str
        A Jinja template.

    Examples
    --------
    >>> "You may call" in hermes_template(), "You may call" in tiny_template()
    (True, False)
    """
    return _template(arguments=_AS_WRITTEN, colon_header=False, intro=_INTRO)

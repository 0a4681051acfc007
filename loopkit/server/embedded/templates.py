"""Chat templates of loopkit's own: ChatML, with tools in the manner of Hermes; and the control tags in them.

Tags are built from pieces, here and nowhere else. Knows nothing of weights or servers.
"""

from __future__ import annotations

__all__ = ["hermes_template", "tiny_template"]


def _tag(name: str) -> str:
    return "<" + name + ">"


END_OF_TEXT, START, END = (_tag("|" + name + "|") for name in ("endoftext", "im_start", "im_end"))
CALL, CALL_END, TOOLS, TOOL = _tag("tool_call"), _tag("/tool_call"), _tag("tools"), _tag("tool")

_TEMPLATE = """\
{%- set header = START + ('assistant:\\n' if SHY and not tools else 'assistant\\n') %}
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
_ANEW = "call.arguments | tojson(separators=(',', ':'))"


def _literal(text: str) -> str:
    return "'" + text.replace("\n", "\\n") + "'"


def _template(*, arguments: str, shy: bool, intro: str) -> str:
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
    return head + f"{{%- set SHY = {str(shy).lower()} %}}\n" + _TEMPLATE.replace("ARGUMENTS", arguments)


def tiny_template(*, reserialise: bool = False) -> str:
    """Give the tiny models' chat template.

    Parameters
    ----------
    reserialise : bool
        Write the arguments of past calls anew, as many models' templates do, in place of the text that the model wrote: each
        call then costs the cache what stands behind it.

    Returns
    -------
    str
        A Jinja template.

    Examples
    --------
    >>> "separators" in tiny_template(reserialise=True), "separators" in tiny_template()
    (True, False)
    """
    return _template(arguments=_ANEW if reserialise else _AS_WRITTEN, shy=True, intro="")


def hermes_template() -> str:
    """Give the same template for a trained model, with a word to it on how to call.

    Examples
    --------
    >>> "You may call" in hermes_template(), "You may call" in tiny_template()
    (True, False)
    """
    return _template(arguments=_AS_WRITTEN, shy=False, intro=_INTRO)

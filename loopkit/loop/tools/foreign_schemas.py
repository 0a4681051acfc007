"""Neutralising schemas of foreign tools: control tags in prose become plain text; anywhere else they are refused.

A foreign tool has a schema from an untrusted source. Chat templates print the whole schema into the prompt. Descriptions can be
changed, but names, keys and enum values cannot, because the model has to repeat them exactly.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from loopkit.contract.messages import FunctionSchema, ToolSchema
from loopkit.contract.neutralise import Tags, neutralise
from loopkit.errors import InvalidConfig

__all__ = ["neutralise_schema"]

Place: TypeAlias = Literal["schema", "names", "prose", "data"]
_PLACES: dict[str, Place] = {
    **dict.fromkeys(("description", "title", "examples", "$comment"), "prose"),
    **dict.fromkeys(("enum", "const", "default"), "data"),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"), "names"),
}
"What the value of a schema member contains: prose, fixed data, or a mapping of names. Other members contain a schema."


def neutralise_schema(schema: ToolSchema, tags: Tags) -> ToolSchema:
    """Return a schema in which control tags in descriptions are replaced by plain text.

    Parameters
    ----------
    schema : ToolSchema
        Schema of a foreign tool.
    tags : Tags
        Tags to neutralise.

    Returns
    -------
    ToolSchema
        The schema with every ``description``, ``title``, ``examples`` and ``$comment`` neutralised.

    Raises
    ------
    InvalidConfig
        If a name, key, enum value or other fixed text contains a tag. The message says where, and does not contain the tag.
    """

    def walk(value: Any, where: str, place: Place) -> Any:
        if isinstance(value, str):
            text = neutralise(value, tags)
            if text != value and place != "prose":
                raise InvalidConfig(where, "it contains a control tag (not shown)", "Leave this tool out, or rename it")
            return text
        if isinstance(value, list):
            return [walk(inner, f"{where}[{index}]", place) for index, inner in enumerate(value)]
        if not isinstance(value, dict):
            return value
        neutral: dict[str, Any] = {}
        for index, (key, inner) in enumerate(value.items()):
            walk(key, f"{where}, key {index}", "data")
            below: Place = _PLACES.get(key, "schema") if place == "schema" else "schema" if place == "names" else place
            neutral[key] = walk(inner, f"{where}.{key}", below)
        return neutral

    function = schema.function
    walk(function.name, "the name of a foreign tool", "data")
    where = f"foreign tool {function.name}"
    description = walk(function.description, f"{where}.description", "prose")
    parameters = walk(function.parameters, f"{where}.parameters", "schema")
    return ToolSchema(function=FunctionSchema(name=function.name, description=description, parameters=parameters))

"""A schema that is not the owner's: control tags in its prose become plain text, anywhere else they are refused.

A template prints a tool's whole schema into the prompt, so all of it is text from outside. Prose may change; a name, a key or an
enum value may not, since the model has to write it back. Knows where prose stands in a JSON schema, nothing of tools.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from loopkit.contract.messages import FunctionSchema, ToolSchema
from loopkit.contract.neutralise import Tags, neutralise
from loopkit.errors import InvalidConfig

__all__ = ["neutralised"]

Place: TypeAlias = Literal["schema", "names", "prose", "data"]
_PLACES: dict[str, Place] = {
    **dict.fromkeys(("description", "title", "examples", "$comment"), "prose"),
    **dict.fromkeys(("enum", "const", "default"), "data"),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"), "names"),
}
"What stands under a schema's member; under the others stands a schema, or a word of its language."


def neutralised(schema: ToolSchema, tags: Tags) -> ToolSchema:
    """Write control tags in the prose of a schema as plain text.

    Parameters
    ----------
    schema : ToolSchema
        Of a tool that is not the owner's.
    tags : Tags
        What counts as a tag.

    Returns
    -------
    ToolSchema
        With ``description``, ``title``, ``examples`` and ``$comment`` neutralised wherever they stand.

    Raises
    ------
    InvalidConfig
        When a name, key, enum value or anything else that must stay as it is holds a tag; says where, never shows it.
    """

    def walk(value: Any, where: str, place: Place) -> Any:
        if isinstance(value, str):
            text = neutralise(value, tags)
            if text != value and place != "prose":
                raise InvalidConfig(where, "it holds a control tag (not shown)", "Leave this tool out, or have it renamed")
            return text
        if isinstance(value, list):
            return [walk(inner, f"{where}[{index}]", place) for index, inner in enumerate(value)]
        if not isinstance(value, dict):
            return value
        calm: dict[str, Any] = {}
        for index, (key, inner) in enumerate(value.items()):
            walk(key, f"{where}, key {index}", "data")
            below: Place = _PLACES.get(key, "schema") if place == "schema" else "schema" if place == "names" else place
            calm[key] = walk(inner, f"{where}.{key}", below)
        return calm

    function = schema.function
    walk(function.name, "the name of a foreign tool", "data")
    where = f"foreign tool {function.name}"
    description = walk(function.description, f"{where}.description", "prose")
    parameters = walk(function.parameters, f"{where}.parameters", "schema")
    return ToolSchema(function=FunctionSchema(name=function.name, description=description, parameters=parameters))

"""Tools made from Python functions or JSON schemas: the schema that is sent, and the check of arguments.

A schema has the same bytes in every process: sets are sorted, and titles invented by pydantic are removed.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from jsonschema import Draft202012Validator, SchemaError
from jsonschema.validators import validator_for
from msgspec import UNSET
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import CoreSchema, to_json
from referencing import Registry as References
from referencing.exceptions import Unresolvable

from loopkit.contract.messages import FunctionSchema, ToolSchema
from loopkit.encoding import decode, encode
from loopkit.errors import EncodeError, InvalidConfig, kind_of

__all__ = ["AnyTool", "InvalidCall", "JsonTool", "Tool", "make_tool"]

Arguments: TypeAlias = dict[str, Any]
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclasses.dataclass(frozen=True)
class JsonTool:
    """A tool with a JSON schema.

    Parameters
    ----------
    name : str
        Name of the tool: 1 to 64 of ``A-Z a-z 0-9 _ -``.
    description : str
        What the tool does, for the model.
    parameters : mapping
        JSON schema of the arguments, with ``"type": "object"``.
    call : callable
        Called with the arguments as one dictionary, after they were checked against the schema.

    Examples
    --------
    >>> schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    >>> double = JsonTool("double", "Twice a number.", schema, lambda arguments: 2 * arguments["n"])
    >>> double.call({"n": 4})
    8
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    call: Callable[[Arguments], Any]


AnyTool: TypeAlias = Callable[..., Any] | JsonTool


@dataclasses.dataclass(frozen=True)
class Tool:
    """A callable tool with its schema and the function that checks arguments."""

    schema: ToolSchema
    check: Callable[[Arguments], Arguments]
    "Function that converts the model's arguments for ``run``, or raises :class:`InvalidCall`."
    run: Callable[[Arguments], Any]
    is_async: bool
    "True if ``run`` returns an awaitable."


class InvalidCall(ValueError):
    """A call names an unknown tool or has invalid arguments. The message is written for the model."""


def make_tool(tool: AnyTool, name: str | None = None, description: str | None = None) -> Tool:
    """Build a tool from a function or a JSON schema.

    Parameters
    ----------
    tool : callable or JsonTool
        A Python function or method, ``async`` or not, or a JSON schema with a callable.
    name, description : str, optional
        Name and description for the model. The defaults are the function's name and docstring, or the JsonTool's own.

    Returns
    -------
    Tool
        The schema, the check of arguments and the callable.

    Raises
    ------
    InvalidConfig
        If no tool can be built. The message names the tool and the reason.

    Examples
    --------
    >>> def population(city: str, year: int = 2026) -> int:
    ...     "How many people live in a city."
    >>> tool = make_tool(population)
    >>> encode(tool.schema.function.parameters["properties"]).decode()
    '{"city":{"type":"string"},"year":{"default":2026,"type":"integer"}}'
    >>> tool.check({"city": "Lima", "year": "2020"})
    {'city': 'Lima', 'year': 2020}
    >>> tool.check({"town": "Lima"})
    Traceback (most recent call last):
        ...
    loopkit.loop.tools.schemas.InvalidCall: The arguments do not fit population: city: Missing required argument; \
town: Unexpected keyword argument
    """
    if isinstance(tool, JsonTool):
        name = tool.name if name is None else name
        description = tool.description if description is None else description
        call = tool.call
        parameters, check = _from_json(_checked_name(name), tool)
        run = call
    elif inspect.isfunction(tool) or inspect.ismethod(tool):
        name = tool.__name__ if name is None else name
        description = inspect.getdoc(tool) if description is None else description
        call = tool
        parameters, check = _from_function(_checked_name(name), call)

        def run(values: Arguments) -> Any:
            return call(**values)
    else:
        why = f"{kind_of(tool)} is neither a Python function nor a JsonTool"
        raise InvalidConfig("tools", why, "Write a function with type hints and a docstring")
    text = _json_value(description, f"tool {name}.description") if description else UNSET
    schema = ToolSchema(function=FunctionSchema(name=name, description=text, parameters=parameters))
    return Tool(schema, check, run, inspect.iscoroutinefunction(call))


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        rule = "Use 1 to 64 of A-Z a-z 0-9 _ -, for example with name="
        raise InvalidConfig("tools", f"'{_shown(name[:80])}' is not a valid tool name", rule)
    return name


def _json_value(value: Any, member: str) -> Any:
    """Return a copy of a value that contains only JSON types, with sets as sorted lists."""
    try:
        return decode(encode(_sorted_sets(value), member))
    except EncodeError as error:
        raise InvalidConfig(_shown(error.member), _shown(error.why), "Use only JSON values in a schema") from error


def _shown(text: str) -> str:
    """Replace the brackets and bars that control tags are made of, so that a message contains no tag."""
    return re.sub("[][<>|\uff1c\uff1e\ufe64\ufe65\uff5c]", "·", text)


def _sorted_sets(value: Any) -> Any:
    """Replace each set inside a value by a sorted list, because the order of a set differs between processes."""
    if isinstance(value, Mapping):
        return {key: _sorted_sets(inner) for key, inner in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(_sorted_sets, value), key=lambda inner: to_json(inner, fallback=str))
    if isinstance(value, list | tuple):
        return [_sorted_sets(inner) for inner in value]
    return value


class _JsonSchema(GenerateJsonSchema):
    """Pydantic's JSON schema without invented titles, and with sorted sets as defaults."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def encode_default(self, dft: Any) -> Any:
        return super().encode_default(_sorted_sets(dft))

    def generate(self, schema: CoreSchema, mode: JsonSchemaMode = "validation") -> JsonSchemaValue:
        result = super().generate(schema, mode)
        for key, inner in result.get("$defs", {}).items():
            if "title" in inner and key.endswith(inner["title"]):  # the class's name, with its module if two are equal
                del inner["title"]
        return result


def _from_function(name: str, function: Callable[..., Any]) -> tuple[Arguments, Callable[[Arguments], Arguments]]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidConfig(f"tool {name}", "generators are not supported", "Return a list")
    try:
        signature = inspect.signature(function, eval_str=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        then = "Define the types of its hints at the top level of its module"
        raise InvalidConfig(f"tool {name}", f"a type hint cannot be evaluated: {error}", then) from error
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            then = "Models pass arguments by name: make it a keyword parameter"
            raise InvalidConfig(f"tool {name}", f"its parameter {parameter.name} is positional-only", then)

    # Pydantic calls this stand-in instead of the tool, so that an error inside the tool is not reported as an invalid argument.
    def stand_in(**values: Any) -> Arguments:
        return values

    stand_in.__signature__ = signature.replace(return_annotation=signature.empty)  # type: ignore[attr-defined]
    hints = {parameter.name: parameter.annotation for parameter in signature.parameters.values()}
    stand_in.__annotations__ = {key: hint for key, hint in hints.items() if hint is not signature.empty}
    try:
        adapter: TypeAdapter[Arguments] = TypeAdapter(stand_in)  # type: ignore[arg-type]  # a callable stands for its result
        parameters = _json_value(adapter.json_schema(schema_generator=_JsonSchema), f"tool {name}.parameters")
    except PydanticUserError as error:
        why = str(error).partition("\n")[0].rstrip(".")
        raise InvalidConfig(f"tool {name}", f"a type hint has no JSON schema: {why}", "Use types that have one") from error

    def check(arguments: Arguments) -> Arguments:
        try:
            return adapter.validate_json(encode(arguments, "arguments"))
        except EncodeError as error:
            raise _invalid(name, [(error.member, error.why)]) from error
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            raise _invalid(name, ((_dotted(fault["loc"]), fault["msg"]) for fault in faults)) from error

    return parameters, check


def _from_json(name: str, tool: JsonTool) -> tuple[Arguments, Callable[[Arguments], Arguments]]:
    parameters = _json_value(tool.parameters, f"tool {name}.parameters")
    if not isinstance(parameters, dict) or parameters.get("type") != "object":
        raise InvalidConfig(f"tool {name}.parameters", "expected a JSON schema of an object", 'Start it with "type": "object"')
    kind = validator_for(parameters, default=Draft202012Validator)
    try:
        kind.check_schema(parameters)
    except SchemaError as error:
        where = f"tool {name}.parameters.{_dotted(error.absolute_path)}".removesuffix(".")
        raise InvalidConfig(_shown(where), _shown(error.message[:200]), "Correct the JSON schema") from error
    validator = kind(parameters, registry=References())  # with its default registry, jsonschema would fetch the targets of $ref

    def check(arguments: Arguments) -> Arguments:
        try:
            faults = [(_dotted(error.absolute_path), error.message) for error in validator.iter_errors(arguments)]
        except Unresolvable as error:
            why = f"its schema refers to {error.ref!a}, which it does not contain; this tool cannot be called"
            raise _invalid(name, [("schema", why)]) from error
        if faults:
            raise _invalid(name, faults)
        return copy.deepcopy(arguments)  # the caller passes its own to `allow` before the tool runs

    return parameters, check


def _dotted(path: Iterable[int | str]) -> str:
    return ".".join(map(str, path))


def _invalid(name: str, faults: Iterable[tuple[str, str]]) -> InvalidCall:
    lines = [f"{where}: {why}" if where else why for where, why in faults]
    text = "; ".join(fault if len(fault) <= 200 else f"{fault[:199]}…" for fault in lines[:5])
    more = f"; and {len(lines) - 5} more" if len(lines) > 5 else ""
    return InvalidCall(f"The arguments do not fit {name}: {text}{more}")

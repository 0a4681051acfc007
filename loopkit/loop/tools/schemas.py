"""A Python function, or a JSON schema with a callable, as a tool: what the model is told, and how its arguments are checked.

A schema is plain JSON, settled when the tool is made: the same bytes in every process, so sets are sorted and the titles that
pydantic invents are left out. Arguments are checked by what the schema was made from: pydantic's own model of the signature, or
jsonschema, which fetches nothing. Knows nothing of who holds the tools, of epochs or of running one.
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

__all__ = ["AnyTool", "JsonTool", "Misfit", "Tool", "make_tool"]

Arguments: TypeAlias = dict[str, Any]
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclasses.dataclass(frozen=True)
class JsonTool:
    """A tool that is described by a JSON schema.

    Parameters
    ----------
    name, description : str
        What the model is told.
    parameters : mapping
        JSON schema of the arguments, of ``type`` ``object``.
    call : callable
        Gets the arguments as one dictionary, once they fit the schema.

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
    """A tool made ready."""

    schema: ToolSchema
    check: Callable[[Arguments], Arguments]
    "Arguments as the model wrote them -> as ``run`` takes them; raises :class:`Misfit`."
    run: Callable[[Arguments], Any]
    asynchronous: bool
    "What ``run`` returns is to be awaited."


class Misfit(ValueError):
    """A call that cannot be run as it is; the text is for the model."""


def make_tool(tool: AnyTool, name: str | None = None, description: str | None = None) -> Tool:
    """Make a tool ready.

    Parameters
    ----------
    tool : callable or JsonTool
        A plain Python function, ``async`` or not, or a method; or a JSON schema with a callable.
    name, description : str, optional
        What to tell the model instead of the function's name and docstring, or the JsonTool's own.

    Raises
    ------
    InvalidConfig
        When it cannot be a tool: says of which name, and why.

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
    loopkit.loop.tools.schemas.Misfit: The arguments do not fit population: city: Missing required argument; \
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
        raise InvalidConfig("tools", why, "Wrap it in a function with type hints and a docstring")
    told = _json_value(description, f"tool {name}.description") if description else UNSET
    schema = ToolSchema(function=FunctionSchema(name=name, description=told, parameters=parameters))
    return Tool(schema, check, run, inspect.iscoroutinefunction(call))


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        rule = "It must be 1 to 64 of A-Z a-z 0-9 _ -; give name="
        raise InvalidConfig("tools", f"'{_shown(name[:80])}' is not a tool's name", rule)
    return name


def _json_value(value: Any, member: str) -> Any:
    """Make a value plain JSON that no one else holds."""
    try:
        return decode(encode(_sorted_sets(value), member))
    except EncodeError as error:
        raise InvalidConfig(_shown(error.member), _shown(error.why), "A schema holds only what JSON can") from error


def _shown(text: str) -> str:
    """Make text from outside safe to show: without the brackets and bars that a control tag is made of."""
    return re.sub("[][<>|\uff1c\uff1e\ufe64\ufe65\uff5c]", "·", text)


def _sorted_sets(value: Any) -> Any:
    """Give sets an order that does not depend on the process."""
    if isinstance(value, Mapping):
        return {key: _sorted_sets(inner) for key, inner in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(_sorted_sets, value), key=lambda inner: to_json(inner, fallback=str))
    if isinstance(value, list | tuple):
        return [_sorted_sets(inner) for inner in value]
    return value


class _JsonSchema(GenerateJsonSchema):
    """Pydantic's JSON schema without invented titles, and with sets among the defaults in order."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def encode_default(self, dft: Any) -> Any:
        return super().encode_default(_sorted_sets(dft))

    def generate(self, schema: CoreSchema, mode: JsonSchemaMode = "validation") -> JsonSchemaValue:
        made = super().generate(schema, mode)
        for key, inner in made.get("$defs", {}).items():
            if "title" in inner and key.endswith(inner["title"]):  # the class's own name; behind its module's where two are alike
                del inner["title"]
        return made


def _from_function(name: str, function: Callable[..., Any]) -> tuple[Arguments, Callable[[Arguments], Arguments]]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidConfig(f"tool {name}", "a generator gives no one result", "Return a list instead of yielding")
    try:
        signature = inspect.signature(function, eval_str=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        then = "Types in its hints must be found from the top of the module that it stands in"
        raise InvalidConfig(f"tool {name}", f"a type hint cannot be read: {error}", then) from error
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            then = "A model gives arguments by name: take that parameter by name too"
            raise InvalidConfig(f"tool {name}", f"its parameter {parameter.name} is positional only", then)

    # Pydantic calls this stand-in with the arguments that it has checked: were it the tool itself, an error of the tool's own
    # would look like one of the arguments'.
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
        raise InvalidConfig(f"tool {name}", f"a type hint has no JSON schema: {why}", "Use types that JSON can hold") from error

    def check(arguments: Arguments) -> Arguments:
        try:
            return adapter.validate_json(encode(arguments, "arguments"))
        except EncodeError as error:
            raise _misfit(name, [(error.member, error.why)]) from error
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            raise _misfit(name, ((_dotted(fault["loc"]), fault["msg"]) for fault in faults)) from error

    return parameters, check


def _from_json(name: str, tool: JsonTool) -> tuple[Arguments, Callable[[Arguments], Arguments]]:
    parameters = _json_value(tool.parameters, f"tool {name}.parameters")
    if not isinstance(parameters, dict) or parameters.get("type") != "object":
        raise InvalidConfig(f"tool {name}.parameters", "it is not a JSON schema of an object", 'Begin it with "type": "object"')
    kind = validator_for(parameters, default=Draft202012Validator)
    try:
        kind.check_schema(parameters)
    except SchemaError as error:
        where = f"tool {name}.parameters.{_dotted(error.absolute_path)}".removesuffix(".")
        raise InvalidConfig(_shown(where), _shown(error.message[:200]), "Mend the JSON schema") from error
    validator = kind(parameters, registry=References())  # without a registry of our own, jsonschema would fetch what $ref names

    def check(arguments: Arguments) -> Arguments:
        try:
            faults = [(_dotted(error.absolute_path), error.message) for error in validator.iter_errors(arguments)]
        except Unresolvable as error:
            why = f"its schema refers to {error.ref!a}, which it does not hold; this tool cannot be called"
            raise _misfit(name, [("schema", why)]) from error
        if faults:
            raise _misfit(name, faults)
        return copy.deepcopy(arguments)  # the caller shows its own to others before the tool runs

    return parameters, check


def _dotted(path: Iterable[int | str]) -> str:
    return ".".join(map(str, path))


def _misfit(name: str, faults: Iterable[tuple[str, str]]) -> Misfit:
    told = [f"{where}: {why}" if where else why for where, why in faults]
    text = "; ".join(fault if len(fault) <= 200 else f"{fault[:199]}…" for fault in told[:5])
    more = f"; and {len(told) - 5} more" if len(told) > 5 else ""
    return Misfit(f"The arguments do not fit {name}: {text}{more}")

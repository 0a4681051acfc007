"""`Registry`: the tools of a loop, searched with ``find_tool`` and called with ``call_tool``.

The schemas of core tools are in the baseline, so every request contains them. The model discovers all other tools with
``find_tool``. Such tools can be added during an epoch without changing a byte of the prompt.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from loopkit.contract.messages import FunctionSchema, ToolSchema
from loopkit.contract.neutralise import DEFAULT, Tags
from loopkit.errors import InvalidConfig
from loopkit.ids import Timestamp
from loopkit.loop.tools.foreign_schemas import neutralise_schema
from loopkit.loop.tools.schemas import AnyTool, InvalidCall, JsonTool, Tool, make_tool
from loopkit.reprs import Card, counted

__all__ = ["Bound", "Registry", "SearchableMemory"]

_DESCRIBED = 5
"Maximum tools that ``find_tool`` describes in one result. It lists only the names of further matches."


class SearchableMemory(Protocol):
    """Protocol of a memory that the model can search."""

    def block(self) -> str:
        """Return the text to append to the system prompt; empty if there is none."""

    def found(self, query: str) -> Any:
        """Search the memory.

        Parameters
        ----------
        query : str
            Words to search for, from the model.

        Returns
        -------
        Any
            The matches, as a JSON value for the model.
        """


class Bound(NamedTuple):
    """A tool call whose tool exists and whose arguments were checked, ready to run."""

    name: str
    "Name of the tool that will run. For ``call_tool``, this is the inner tool."
    arguments: dict[str, Any]
    "Arguments as the model wrote them, parsed."
    run: Callable[[], Any]
    is_async: bool
    "True if ``run`` returns an awaitable."


class _Entry(NamedTuple):
    tool: Tool
    is_core: bool
    is_foreign: bool
    schema: ToolSchema
    "Schema that is sent to the model. Control tags in a foreign tool's schema are neutralised."


class Registry:
    """Tools that the model may call, in the order in which they were added.

    If there is at least one tool, ``find_tool``, ``call_tool`` and ``clock`` follow after the tools. With a memory, ``recall``
    does too.

    Parameters
    ----------
    tools : iterable of callable or JsonTool
        Core tools: Python functions with a docstring and type hints, or JSON schemas with a callable.
    tags : Tags
        Control tags to neutralise in the schemas of foreign tools. `start` and `resume` replace them by the session's tags.

    Raises
    ------
    InvalidConfig
        See :meth:`add`.

    Examples
    --------
    >>> def population(city: str) -> int:
    ...     "How many people live in a city."
    ...     return {"Lima": 10_092_000}[city]
    >>> registry = Registry([population])
    >>> [schema.function.name for schema in registry.core_schemas()]
    ['population', 'find_tool', 'call_tool', 'clock']
    >>> registry.bind("population", {"city": "Lima"}).run()
    10092000
    >>> Registry().core_schemas()
    ()
    """

    def __init__(self, tools: Iterable[AnyTool] = (), *, tags: Tags = DEFAULT) -> None:
        self._tags = tags
        self._entries: dict[str, _Entry] = {}
        own = (make_tool(self._find_tool, "find_tool"), make_tool(self._call_tool, "call_tool"), make_tool(_clock, "clock"))
        self._own = {tool.schema.function.name: tool for tool in own}
        if callable(tools) or isinstance(tools, JsonTool):
            raise InvalidConfig("tools", "a single tool is not a list of tools", "Write tools=[…]")
        for tool in tools:
            self.add(tool)

    def add(
        self,
        tool: AnyTool,
        *,
        name: str | None = None,
        description: str | None = None,
        core: bool = True,
        foreign: bool = False,
    ) -> None:
        """Add a tool. The model can find and call it at once.

        The schema of a core tool is in the baselines of later epochs; the baseline of an open epoch does not change. If the open
        epoch started without any tool, the model has no ``find_tool`` and can use the new tool only in the next epoch.

        Parameters
        ----------
        tool : callable or JsonTool
            A Python function with a docstring and type hints, or a JSON schema with a callable.
        name, description : str, optional
            Name and description for the model, instead of the tool's own.
        core : bool
            If True, the schema is part of the baseline. If False, the model has to find the tool with ``find_tool``.
        foreign : bool
            If True, the schema comes from an untrusted source: control tags in descriptions are neutralised, and control tags in
            names or values raise an error.

        Raises
        ------
        InvalidConfig
            If the name is in use or invalid, or if the tool has no schema. Nothing is added.

        Examples
        --------
        >>> registry = Registry()
        >>> registry.add(lambda city: city, name="echo_city", description="Return the city.", core=False)
        >>> registry
        Registry of 1 tool: core none, found echo_city
        """
        added = make_tool(tool, name, description)
        name = added.schema.function.name
        if name in self:
            why = "the name belongs to a tool of loopkit" if name in self._own else "a tool of this name exists"
            raise InvalidConfig(f"tool {name}", why, "Pass another name with name=")
        schema = neutralise_schema(added.schema, self._tags) if foreign else added.schema
        # a new dict, because a running turn may read the old one
        self._entries = {**self._entries, name: _Entry(added, core, foreign, schema)}

    def use_tags(self, tags: Tags) -> None:
        """Neutralise the schemas of foreign tools with the tags of a session.

        Parameters
        ----------
        tags : Tags
            Tags that the session pins.

        Raises
        ------
        InvalidConfig
            If a name, key or enum value of a foreign tool contains one of these tags. Nothing is changed.
        """
        entries = {
            name: entry._replace(schema=neutralise_schema(entry.tool.schema, tags)) if entry.is_foreign else entry
            for name, entry in self._entries.items()
        }
        self._tags, self._entries = tags, entries

    def use_memory(self, memory: SearchableMemory) -> None:
        """Add the tool ``recall``, which searches a memory.

        Parameters
        ----------
        memory : Memory
            A memory from `loopkit.memory.open`.

        Raises
        ------
        InvalidConfig
            If another tool is called ``recall``.
        """

        def recall(query: str) -> Any:
            """Search what was learned in earlier sessions, by words. Gives texts, and where each comes from."""
            return memory.found(query)

        if "recall" in self._entries:
            raise InvalidConfig("tool recall", "the name belongs to the tool of the memory", "Pass another name with name=")
        self._own = {**self._own, "recall": make_tool(recall)}

    def core_schemas(self) -> tuple[ToolSchema, ...]:
        """Return the schemas for the next baseline: core tools in registration order, then loopkit's own. Empty without tools."""
        if not self._entries and "recall" not in self._own:
            return ()
        core = (entry.schema for entry in self._entries.values() if entry.is_core)
        return (*core, *(tool.schema for tool in self._own.values()))

    def schemas(self) -> dict[str, ToolSchema]:
        """Return the schema of every tool by name, including found tools and loopkit's own."""
        entries: dict[str, _Entry | Tool] = {**self._entries, **self._own}
        return {name: entry.schema for name, entry in entries.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the added tools, without loopkit's own such as ``find_tool``."""
        return tuple(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries or name in self._own

    def bind(self, name: str, arguments: dict[str, Any]) -> Bound:
        """Look up the tool of a call and check the arguments. Nothing is run.

        Parameters
        ----------
        name : str
            Name of the tool.
        arguments : dict
            Arguments of the call, parsed.

        Returns
        -------
        Bound
            The tool and its arguments; its ``run()`` calls the tool.

        Raises
        ------
        InvalidCall
            If the tool does not exist or the arguments do not fit its schema. The message is written for the model.
        """
        entry = self._entries.get(name)
        tool = entry.tool if entry is not None else self._own.get(name)
        if tool is None:
            raise InvalidCall(self._unknown(name))
        values = tool.check(arguments)
        if name == "call_tool":
            return self._call_tool(**values)
        return Bound(name, arguments, lambda: tool.run(values), tool.is_async)

    def _unknown(self, name: str) -> str:
        names = [*self._entries, *self._own]
        near = difflib.get_close_matches(name[:64], names, 3, 0.5)
        hint = f"The nearest names are: {', '.join(near)}" if near else f"There are: {_listed(names)}"
        return f"There is no tool {name[:64]!a}. {hint}."

    def _find_tool(self, query: str) -> dict[str, Any]:
        """Find more tools, by words that their names or descriptions hold. Use call_tool to call one."""
        best = _ranked(query, [entry.schema.function for entry in self._entries.values()])
        if not best:
            return {"tools": [], "none_fits": query, "there_are": _listed(self.names)}
        shown = [
            {"name": function.name, "description": function.description or "", "parameters": function.parameters}
            for function in best[:_DESCRIBED]
        ]
        rest = [function.name for function in best[_DESCRIBED:]]
        return {"tools": shown, "more": _listed(rest)} if rest else {"tools": shown}

    def _call_tool(self, name: str, arguments: dict[str, Any]) -> Bound:
        """Call a tool that find_tool has found, by its name and with arguments that fit its parameters."""
        if name == "call_tool":
            raise InvalidCall("call_tool does not call itself. Give the name of the tool that is to run.")
        return self.bind(name, arguments)

    def _card(self) -> Card:
        core = [name for name, entry in self._entries.items() if entry.is_core]
        found = [name for name, entry in self._entries.items() if not entry.is_core]
        return Card(f"Registry of {counted(len(self._entries), 'tool')}", [("core", _listed(core)), ("found", _listed(found))])

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()


def _clock() -> str:
    """The present date and time, with the offset of this machine's time zone."""
    return Timestamp.now().datetime().astimezone().isoformat(timespec="seconds")


def _listed(names: Sequence[str], most: int = 20) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else "none"


def _ranked(query: str, functions: Sequence[FunctionSchema]) -> list[FunctionSchema]:
    """Return the functions that match a query, best first. A word that matches many functions counts less."""
    scores = [0.0] * len(functions)
    for word in dict.fromkeys(_words(query)):
        points = [_points(word, function) for function in functions]
        share = sum(1 for point in points if point)
        scores = [score + point / share if point else score for score, point in zip(scores, points)]
    order = sorted(range(len(functions)), key=lambda index: -scores[index])
    return [functions[index] for index in order if scores[index]]


def _points(word: str, function: FunctionSchema) -> int:
    """Return how well a word of a query matches a function: 0 to 4. The name counts more than the description."""
    best = 0
    for weight, text in ((2, function.name), (1, function.description or "")):
        for other in _words(text):
            fits = 2 if word == other else 1 if _begins(word, other) else 0
            best = max(best, weight * fits)
    return best


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


def _begins(one: str, other: str) -> bool:
    return min(len(one), len(other)) >= 3 and (one.startswith(other) or other.startswith(one))

"""The tools of a loop: which there are, which of them the model is told of from the start, and which it has to find.

Core tools have their schemas in the baseline; found tools do not, so one can be added during an epoch without changing an early
byte: the model looks for it with ``find_tool`` and calls it with ``call_tool``. Knows nothing of servers, of the log, or of
whether a call is allowed; it resolves a call and checks its arguments, and the port runs it.
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
from loopkit.loop.tools.foreign_schemas import neutralised
from loopkit.loop.tools.schemas import AnyTool, JsonTool, Misfit, Tool, make_tool
from loopkit.reprs import Card, counted

__all__ = ["Bound", "Registry", "SearchableMemory"]

_SHOWN = 5
"How many tools one ``find_tool`` describes; the others are named."


class SearchableMemory(Protocol):
    """What a loop needs of a memory."""

    def block(self) -> str:
        """The memory block as it is today; empty where there is none."""

    def found(self, query: str) -> Any:
        """What the model is to be given for a query."""


class Bound(NamedTuple):
    """A call whose tool is there and whose arguments fit."""

    name: str
    "The tool that will run: of a ``call_tool``, the one that it calls."
    arguments: dict[str, Any]
    "As the model wrote them, parsed."
    run: Callable[[], Any]
    asynchronous: bool
    "What ``run`` returns is to be awaited."


class _Held(NamedTuple):
    tool: Tool
    core: bool
    foreign: bool
    schema: ToolSchema
    "The tool's own; of a foreign one, neutralised."


class Registry:
    """Tools, in the order in which they were added.

    Where there is at least one, ``find_tool``, ``call_tool`` and ``clock`` stand behind them, and ``recall`` where there is a
    memory.

    Parameters
    ----------
    tools : iterable of callable or JsonTool
        Core tools.
    tags : Tags
        What is a control tag in a foreign tool's schema; see :meth:`use_tags`.

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
        self._held: dict[str, _Held] = {}
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
        """Add a tool; the model can find and call it at once.

        Its schema stands in the baselines of later epochs, never in one that is open. (In an epoch that began without any tool
        there is no ``find_tool`` either.)

        Parameters
        ----------
        tool : callable or JsonTool
            A function with a docstring and type hints, or a JSON schema with a callable.
        name, description : str, optional
            What to tell the model instead of the tool's own.
        core : bool
            Whether its schema is to stand in the baseline.
        foreign : bool
            The description is not the owner's: control tags in it are neutralised, in names and values they are refused.

        Raises
        ------
        InvalidConfig
            When the name is taken or breaks its rule, or the tool has no schema; nothing was added.
        """
        made = make_tool(tool, name, description)
        name = made.schema.function.name
        if name in self:
            why = "loopkit's own tool has that name" if name in self._own else "there is a tool of that name"
            raise InvalidConfig(f"tool {name}", why, "Give it another with name=")
        schema = neutralised(made.schema, self._tags) if foreign else made.schema
        self._held = {**self._held, name: _Held(made, core, foreign, schema)}  # a new one: a turn may be reading the old

    def use_tags(self, tags: Tags) -> None:
        """Neutralise foreign tools by the set that a session pins: before its baseline is assembled, or compared on resume.

        Raises
        ------
        InvalidConfig
            When a name, key or enum value of a foreign tool holds one of these tags; nothing was changed.
        """
        made = {
            name: held._replace(schema=neutralised(held.tool.schema, tags)) if held.foreign else held
            for name, held in self._held.items()
        }
        self._tags, self._held = tags, made

    def use_memory(self, memory: SearchableMemory) -> None:
        """Have the model search a memory, with ``recall``; before a baseline is assembled, or compared on resume."""

        def recall(query: str) -> Any:
            """Search what was learned in earlier sessions, by words. Gives texts, and where each comes from."""
            return memory.found(query)

        if "recall" in self._held:
            raise InvalidConfig("tool recall", "the memory's own tool has that name", "Give yours another with name=")
        self._own = {**self._own, "recall": make_tool(recall)}

    def core_schemas(self) -> tuple[ToolSchema, ...]:
        """The schemas for the next baseline, in registration order; none where there are no tools."""
        if not self._held and "recall" not in self._own:
            return ()
        return (*(held.schema for held in self._held.values() if held.core), *(tool.schema for tool in self._own.values()))

    def schemas(self) -> dict[str, ToolSchema]:
        """The schema of every tool by its name, found tools and loopkit's own with them."""
        return {name: held.schema for name, held in self._held.items()} | {name: tool.schema for name, tool in self._own.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools that were added."""
        return tuple(self._held)

    def __contains__(self, name: str) -> bool:
        return name in self._held or name in self._own

    def bind(self, name: str, arguments: dict[str, Any]) -> Bound:
        """Resolve a call and check its arguments; nothing is run.

        Raises
        ------
        Misfit
            When there is no such tool, or the arguments do not fit; its text is for the model.
        """
        held = self._held.get(name)
        tool = held.tool if held is not None else self._own.get(name)
        if tool is None:
            raise Misfit(self._unknown(name))
        values = tool.check(arguments)
        if name == "call_tool":
            return self._call_tool(**values)
        return Bound(name, arguments, lambda: tool.run(values), tool.asynchronous)

    def _unknown(self, name: str) -> str:
        names = [*self._held, *self._own]
        near = difflib.get_close_matches(name[:64], names, 3, 0.5)
        hint = f"The nearest names are: {', '.join(near)}" if near else f"There are: {_listed(names)}"
        return f"There is no tool {name[:64]!a}. {hint}."

    def _find_tool(self, query: str) -> dict[str, Any]:
        """Find more tools, by words that their names or descriptions hold. Use call_tool to call one."""
        best = _ranked(query, [held.schema.function for held in self._held.values()])
        if not best:
            return {"tools": [], "none_fits": query, "there_are": _listed(self.names)}
        shown = [
            {"name": function.name, "description": function.description or "", "parameters": function.parameters}
            for function in best[:_SHOWN]
        ]
        rest = [function.name for function in best[_SHOWN:]]
        return {"tools": shown, "more": _listed(rest)} if rest else {"tools": shown}

    def _call_tool(self, name: str, arguments: dict[str, Any]) -> Bound:
        """Call a tool that find_tool has found, by its name and with arguments that fit its parameters."""
        if name == "call_tool":
            raise Misfit("call_tool does not call itself. Give the name of the tool that is to run.")
        return self.bind(name, arguments)

    def _card(self) -> Card:
        core = [name for name, held in self._held.items() if held.core]
        found = [name for name, held in self._held.items() if not held.core]
        return Card(f"Registry of {counted(len(self._held), 'tool')}", [("core", _listed(core)), ("to be found", _listed(found))])

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
    """Those that fit, the best first. A word counts for the less the more of them it fits: "the" for next to nothing."""
    scores = [0.0] * len(functions)
    for word in dict.fromkeys(_words(query)):
        points = [_points(word, function) for function in functions]
        share = sum(1 for point in points if point)
        scores = [score + point / share if point else score for score, point in zip(scores, points)]
    order = sorted(range(len(functions)), key=lambda index: -scores[index])
    return [functions[index] for index in order if scores[index]]


def _points(word: str, function: FunctionSchema) -> int:
    """How well a word fits: in a name it counts for more than in a description, whole for more than the beginning of one."""
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

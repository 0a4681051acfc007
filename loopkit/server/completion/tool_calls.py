"""Tool calls out of fragments: which fragment belongs to which call, and what the whole calls are.

Servers agree on little: an index may be missing or always 0, an id may come once, on every fragment, twice in one message or
never, arguments may be text in fragments or an object. Two calls are never merged without a word: where a fragment could begin a
call or go on with one, what it names decides. Pure: does not know what a tool is.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from loopkit.encoding import compact, decode, encode, replace_surrogates
from loopkit.server.completion.json_fragments import NULL, Members, Reader, Value, join, mend_escapes

__all__ = ["ToolCalls"]

_LABELS = ("id", "type", "name")  # said once or again and again, never in parts


def _label(fragment: dict[str, Value], name: str) -> str | None:
    value = fragment.get(name)
    return value if isinstance(value, str) and value else None


def _arguments(fragment: dict[str, Value]) -> str | None:
    """The text of a fragment's arguments; an object is written as the server wrote it."""
    value = fragment.get("arguments", NULL)
    if isinstance(value, str):
        return value
    return None if value == NULL else compact(value).decode("utf-8")


class _Call:
    """One call: its own members, and its function's."""

    def __init__(self) -> None:
        self.id: str | None = None
        self.name: str | None = None
        self.members = Members()
        self.function = Members()
        self.arguments: list[str] = []

    def add(self, fragment: dict[str, Value], function: dict[str, Value], arguments: str | None) -> None:
        self.id = self.id or _label(fragment, "id")
        self.name = self.name or _label(function, "name")
        if arguments is not None:
            self.arguments.append(arguments)
        for members, new in ((self.members, fragment), (self.function, function)):
            members.add({name: value for name, value in new.items() if name not in _LABELS or name not in members.values})

    def is_whole(self) -> bool:
        """True when its arguments are an object that has ended."""
        text = "".join(self.arguments).strip()
        if not (text.startswith("{") and text.endswith("}")):
            return False
        try:
            decode(mend_escapes(replace_surrogates(text)[0])[0])
        except ValueError:
            return False
        return True

    def render(self, id: str) -> tuple[dict[str, Any], int]:
        """The call as it will be logged and sent, and how many characters were replaced in it."""
        text, lone = replace_surrogates("".join(self.arguments) if self.arguments else "{}")
        text, escaped = mend_escapes(text)  # arguments are JSON inside JSON; a server that parses them refuses the escape as well
        name, halves = replace_surrogates(self.name or "")
        function, inner = _rendered(self.function, {"name": name, "arguments": text})
        call, outer = _rendered(self.members, {"id": id, "function": function})
        return call, lone + escaped + halves + inner + outer


def _rendered(members: Members, ours: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Members in the order in which they came, `ours` in their places; one of ours that never came stands first."""
    rendered = {name: value for name, value in ours.items() if name not in members.values}
    replaced = 0
    for name, values in members.values.items():
        if name in ours:
            rendered[name] = ours[name]
        else:
            data, count = join(name, values)
            rendered[name] = Raw(data)
            replaced += count
    return rendered, replaced


class ToolCalls:
    """The calls of one message."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[Value, _Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, data: Raw, loose: Any, reader: Reader, *, whole: bool) -> tuple[int, str | None, str]:
        """Take a fragment in: gives the position of its call, the name where the call begins, and the text for its arguments.

        Parameters
        ----------
        data : Raw
            An element of ``tool_calls``.
        loose : Any
            Its loose form; see `Reader`.
        reader : Reader
            Opens it.
        whole : bool
            It is a call of an answer that was not streamed.
        """
        fragment = reader.open(data, loose, deeper="function")
        function: dict[str, Value] = {}
        if isinstance(raw := fragment.get("function"), bytes) and raw != NULL:
            function = reader.open(Raw(raw), None if loose is None else loose["function"])
        index = NULL if whole else fragment.pop("index", NULL)
        arguments = _arguments(function)
        call = None if whole else self._current(index, _label(fragment, "id"), _label(function, "name"), arguments)
        begins = call is None
        if call is None:
            call = _Call()
            self._calls.append(call)
        if index != NULL:
            self._by_index[index] = call
        call.add(fragment, function, arguments)
        return self._calls.index(call), call.name or "" if begins else None, arguments or ""

    def _current(self, index: Value, id: str | None, name: str | None, arguments: str | None) -> _Call | None:
        """The call that a fragment goes on with; None where it begins one."""
        if index != NULL:
            current = self._by_index.get(index)
        elif id:
            current = next((call for call in self._calls if call.id == id), None)
        else:
            current = self._calls[-1] if self._calls and not name else None
        if current is None or (id and current.id and id != current.id):
            return None
        if name and current.name and (name != current.name or (arguments and current.is_whole())):
            return None
        return current

    def render(self, first_call: int) -> tuple[Raw, int]:
        """The array of all calls as JSON, and how many characters were replaced in it.

        An id that is missing, or was used before in the message, becomes ``call_<n>``, where n is the number of the call.
        """
        given = {call.id for call in self._calls}
        used: set[str] = set()
        rendered, replaced = [], 0
        for number, call in enumerate(self._calls, first_call):
            id, lone = replace_surrogates(call.id or "")
            if not id or id in used:
                id, lone = f"call_{number}", 0
                while id in given or id in used:
                    id += "_"
            used.add(id)
            item, count = call.render(id)
            rendered.append(item)
            replaced += count + lone
        return Raw(encode(rendered, "tool_calls")), replaced

"""Tool calls in fragments: assignment of fragments to calls, and the complete calls.

A stream sends each tool call in fragments, and servers differ in how they identify the call of a fragment. The index may be
missing or always 0. The id may be in the first fragment, in all fragments, the same for two calls, or missing. The arguments may
be pieces of text, or an object. If a fragment could start a call or continue one, its id and name decide.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from loopkit.encoding import compact, decode, encode, replace_surrogates
from loopkit.server.completion.json_fragments import NULL, FragmentDecoder, Members, Value, join, replace_surrogate_escapes

__all__ = ["ToolCalls"]

_LABELS = ("id", "type", "name")  # members that servers never split; they send them once, or again in every fragment


def _label(fragment: dict[str, Value], name: str) -> str | None:
    value = fragment.get(name)
    return value if isinstance(value, str) and value else None


def _arguments(fragment: dict[str, Value]) -> str | None:
    """Return the arguments in one fragment of a tool call, or None if it has none.

    If the server sent a JSON object instead of a string, return its JSON text without white space.
    """
    value = fragment.get("arguments", NULL)
    if isinstance(value, str):
        return value
    return None if value == NULL else compact(value).decode("utf-8")


class _Call:
    """One tool call, collected from its fragments."""

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
        """Return True if the arguments received so far are a complete JSON object."""
        text = "".join(self.arguments).strip()
        if not (text.startswith("{") and text.endswith("}")):
            return False
        try:
            decode(replace_surrogate_escapes(replace_surrogates(text)[0])[0])
        except ValueError:
            return False
        return True

    def render(self, id: str) -> tuple[dict[str, Any], int]:
        """Return the complete call, as an element of a message's ``tool_calls``, and the number of replaced surrogates."""
        text, in_text = replace_surrogates("".join(self.arguments) if self.arguments else "{}")
        # The arguments are JSON inside a string. A server that parses them would reject an escaped lone surrogate, too.
        text, in_escapes = replace_surrogate_escapes(text)
        name, in_name = replace_surrogates(self.name or "")
        function, in_function = _merge(self.function, {"name": name, "arguments": text})
        call, in_call = _merge(self.members, {"id": id, "function": function})
        return call, in_text + in_escapes + in_name + in_function + in_call


def _merge(members: Members, known: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the merged members in the server's order, and the number of replaced surrogates.

    Values in `known` replace the server's. Members that only `known` has come first.
    """
    rendered = {name: value for name, value in known.items() if name not in members.values}
    replaced = 0
    for name, values in members.values.items():
        if name in known:
            rendered[name] = known[name]
        else:
            data, count = join(name, values)
            rendered[name] = Raw(data)
            replaced += count
    return rendered, replaced


class ToolCalls:
    """The tool calls of one message, collected from fragments."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[Value, _Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, data: Raw, loose: Any, decoder: FragmentDecoder, *, whole: bool) -> tuple[int, str | None, str]:
        """Add a fragment to the call that it belongs to, or start a new call with it.

        Parameters
        ----------
        data : Raw
            The fragment: one element of ``tool_calls`` as JSON.
        loose : Any
            The fragment's loose form, or None; see `FragmentDecoder`.
        decoder : FragmentDecoder
            Decoder of the message that contains the fragment.
        whole : bool
            True if the fragment is a complete call, from a response that was not streamed.

        Returns
        -------
        tuple of (int, str or None, str)
            Position of the call in the message, the call's name (None if the fragment continues a call), and the text that the
            fragment adds to the call's arguments.
        """
        fragment = decoder.open(data, loose, deeper="function")
        function: dict[str, Value] = {}
        if isinstance(raw := fragment.get("function"), bytes) and raw != NULL:
            function = decoder.open(Raw(raw), None if loose is None else loose["function"])
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
        """Return the call that a fragment with these values continues; None if the fragment starts a new call."""
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
        """Return all calls as a JSON array.

        Parameters
        ----------
        first_call : int
            Number of the message's first call, counted over the session. A call whose id is missing or repeated gets the id
            ``call_<n>``, where ``n`` is the number of the call.

        Returns
        -------
        tuple of (Raw, int)
            The value for ``tool_calls``, and the number of replaced surrogates.
        """
        reported = {call.id for call in self._calls}
        used: set[str] = set()
        rendered, replaced = [], 0
        for number, call in enumerate(self._calls, first_call):
            id, lone = replace_surrogates(call.id or "")
            if not id or id in used:
                id, lone = f"call_{number}", 0
                while id in reported or id in used:
                    id += "_"
            used.add(id)
            item, count = call.render(id)
            rendered.append(item)
            replaced += count + lone
        return Raw(encode(rendered, "tool_calls")), replaced

"""The tokens that a chat template alone loses, for each kind of turn.

The server renders and tokenises conversations; it generates nothing. A loss found here occurs at every such turn, even if the
client keeps every byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from loopkit.cache.losses.token_comparison import compare
from loopkit.contract.records import Usage
from loopkit.encoding import encode
from loopkit.engines.evidence.tokens import TokenView
from loopkit.errors import ServerRefused
from loopkit.reprs import Card

__all__ = ["KINDS", "TemplateLoss", "TemplateMatrix", "template_matrix"]

Message = dict[str, Any]

SYSTEM: Final = {"role": "system", "content": "You answer in one word."}
MORE: Final = {"role": "user", "content": "And the next one?"}


def _user() -> Message:
    return {"role": "user", "content": "What is the weather in Lima?"}


def _answer(text: str, *arguments: str, reasoning: str = "") -> Message:
    calls = [
        {"id": f"call{at:05}", "type": "function", "function": {"name": "weather", "arguments": each}}
        for at, each in enumerate(arguments)
    ]
    thought = {"reasoning_content": reasoning} if reasoning else {}
    return {"role": "assistant", "content": text, **thought, **({"tool_calls": calls} if calls else {})}


def _results(count: int) -> list[Message]:
    return [{"role": "tool", "tool_call_id": f"call{at:05}", "content": "Mist, 17 degrees."} for at in range(count)]


LIMA, ODD = '{"place": "Lima"}', '{ "place" : "Lima",  "days": 1.10 }'  # the usual spelling, and a rare one
THOUGHT = "The person wants the weather, so the tool is called for."
KINDS: Final[dict[str, list[Message]]] = {
    "plain": [_user(), _answer("Mist."), MORE],
    "reasoning": [_user(), _answer("Mist.", reasoning=THOUGHT), MORE],
    "tool call": [_user(), _answer("", LIMA), *_results(1), _answer("Mist."), MORE],
    "tool call, arguments spelled freely": [_user(), _answer("", ODD), *_results(1), _answer("Mist."), MORE],
    "text and tool call": [_user(), _answer("Let me see.", LIMA), *_results(1), _answer("Mist."), MORE],
    "parallel calls": [_user(), _answer("", LIMA, '{"place": "Oslo"}'), *_results(2), _answer("Mist."), MORE],
    "reasoning and tool call": [
        _user(),
        _answer("", LIMA, reasoning=THOUGHT),
        *_results(1),
        _answer("Mist.", reasoning=THOUGHT),
        MORE,
    ],
}
"""The kinds of turn: the messages from the question to the next turn's question."""

TOOL: Final = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "number"}}},
    },
}


class _Server(Protocol):
    def tokens(self, request: bytes) -> TokenView | None: ...


class TemplateLoss(NamedTuple):
    """Tokens that the template loses in one kind of turn."""

    kind: str
    lost_tokens: int | None
    """Lost tokens of the turn's requests and of the first request of the next turn. A lower bound, since dropped text cannot be
    counted. None if the server does not show tokens, or the template refuses the turn."""
    where: str | None
    "The first part of the prompt that differs."
    how: str
    "``kept``, ``parts``, ``rewritten``, ``dropped``, ``refused`` or ``unknown``."


@dataclass(frozen=True, slots=True, repr=False)
class TemplateMatrix:
    """Tokens that the template loses in each kind of turn. Its ``str`` is a table."""

    rows: tuple[TemplateLoss, ...]

    def _card(self) -> Card:
        facts = [(row.kind, "?" if row.lost_tokens is None else f"{row.lost_tokens:,}") for row in self.rows]
        return Card("Tokens lost by the template", facts, spare=[kind for kind, lost in facts if lost == "0"])

    def __str__(self) -> str:
        wide = max((len(row.kind) for row in self.rows), default=0)
        return "\n".join(
            f"{row.kind:<{wide}}  {'?' if row.lost_tokens is None else row.lost_tokens:>5}  {row.how}"
            + (f" at {row.where}" if row.where else "")
            for row in self.rows
        )

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()


def template_matrix(server: _Server) -> TemplateMatrix:
    """Count the tokens that a server's chat template loses in each kind of turn.

    Parameters
    ----------
    server : Server
        Only its ``tokens`` method is called.

    Returns
    -------
    TemplateMatrix

    Examples
    --------
    >>> from loopkit.server.opening import serve
    >>> with serve("tiny") as server:
    ...     matrix = template_matrix(server)
    >>> matrix.rows[0]
    TemplateLoss(kind='plain', lost_tokens=0, where=None, how='kept')
    """
    return TemplateMatrix(tuple(_row(server, kind, messages) for kind, messages in KINDS.items()))


def _row(server: _Server, kind: str, messages: list[Message]) -> TemplateLoss:
    lost, where, how = 0, None, "kept"
    previous: TokenView | None = None
    for sent in _requests(messages):
        body = encode({"tools": [TOOL], "messages": [SYSTEM, *sent]})
        try:
            now = server.tokens(body)
        except ServerRefused:
            return TemplateLoss(kind, None, f"messages[{len(sent)}]", "refused")
        if now is None:
            return TemplateLoss(kind, None, None, "unknown")
        if previous is not None:
            found = compare(previous, now, Usage(completion_tokens=len(now)), body)
            if found.how not in ("extends", "retokenised"):  # the length of the completion is unknown
                until = len(previous) if found.how == "parts" else _written(now, len(previous), sent)
                lost += until - found.token
                where, how = (found.where, found.how) if how == "kept" else (where, how)
        previous = now
    return TemplateLoss(kind, lost, where, how)


def _requests(messages: list[Message]) -> Iterator[list[Message]]:
    """Return the messages of each request: up to each answer, and all."""
    yield from (messages[:at] for at, message in enumerate(messages) if message["role"] == "assistant")
    yield messages


def _written(now: TokenView, start: int, sent: list[Message]) -> int:
    """Return the token offset where the last answer ends."""
    at = max(at for at, message in enumerate(sent, 1) if message["role"] == "assistant")
    ends = [run.end for run in now.parts or () if run.label.startswith(f"messages[{at}].")]
    return max([start, *ends])

"""The tokens that a chat template alone loses, for each kind of turn.

The server only renders and tokenises sample conversations; the model does not run. A loss found here occurs in every turn of the
same kind, even if the client changes no byte of the earlier messages.
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


# JSON in the usual spelling, and with unusual spaces and a number that a template may write differently
LIMA, ODD = '{"place": "Lima"}', '{ "place" : "Lima",  "days": 1.10 }'
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
"""Sample messages of each kind of turn, from the user's question to the question of the next turn."""

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
    """Number of cached tokens that are lost in one kind of turn because the template renders earlier messages differently."""

    kind: str
    "The kind of turn: a key of `KINDS`."
    lost_tokens: int | None
    """Lost tokens in all requests of the turn and the first request of the next turn. This is a lower bound, because tokens of
    dropped texts are unknown. None if the server does not return tokens, or the template refuses the turn."""
    where: str | None
    "The first part of the prompt that is rendered differently or refused; None if there is none."
    how: str
    """``kept``: no tokens are lost. ``parts``: the previous prompt is rendered differently. ``rewritten``, ``dropped``: a text of
    the completion is changed or missing. ``refused``: the template raises an error. ``unknown``: the server returns no tokens."""


@dataclass(frozen=True, slots=True, repr=False)
class TemplateMatrix:
    """Result of `template_matrix`: one row per kind of turn. Its ``str`` is a table."""

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
    """Count the cached tokens that are lost in each kind of turn because of a server's chat template.

    Parameters
    ----------
    server : Server
        A server whose ``tokens`` method returns the tokens of a request body. No other method is called.

    Returns
    -------
    TemplateMatrix
        One `TemplateLoss` for each kind of turn in `KINDS`.

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
            if found.how not in ("extends", "retokenised"):  # "retokenised" needs the completion's length, which is unknown
                until = len(previous) if found.how == "parts" else _written(now, len(previous), sent)
                lost += until - found.token
                where, how = (found.where, found.how) if how == "kept" else (where, how)
        previous = now
    return TemplateLoss(kind, lost, where, how)


def _requests(messages: list[Message]) -> Iterator[list[Message]]:
    """Yield the messages of each request of a turn: those before each assistant message, and finally all messages."""
    yield from (messages[:at] for at, message in enumerate(messages) if message["role"] == "assistant")
    yield messages


def _written(now: TokenView, start: int, sent: list[Message]) -> int:
    """Return the position after the last token of the last assistant message, or `start` if that is larger."""
    at = max(at for at, message in enumerate(sent, 1) if message["role"] == "assistant")
    ends = [run.end for run in now.parts or () if run.label.startswith(f"messages[{at}].")]
    return max([start, *ends])

"""Questions that `Server.doctor` asks a server, and their answers.

A question is one request. Most only read: the properties, slots and models, and two conversations rendered with recognisable
texts. The exception is a completion of one token, sent twice. If a request fails, its answer is a `NoAnswer`. A `NoAnswer` never
quotes the server, because a server's message may contain the API key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from loopkit.contract.records import Usage
from loopkit.encoding import encode
from loopkit.errors import ServerError, ServerRefused, ServerTimeout, ServerUnreachable
from loopkit.server import llama_api
from loopkit.server.completion.assembly import parse_completion
from loopkit.server.transport.connection import Wire
from loopkit.server.transport.refusals import KEY_REFUSED

__all__ = ["Counts", "Examined", "NoAnswer", "ProbeResults", "probe"]

PATIENCE = 10.0  # seconds for a question that needs no model
# Two spellings of arguments: USUAL as templates and most models write them, UNUSUAL with details that parsing does not keep.
USUAL, UNUSUAL = '{"zqb": "one", "zqa": 2}', '{"zqd":1.10,  "zqc": "\\u00e9"}'
THOUGHT_IN_ROUND, THOUGHT_BEFORE = "zq thought in a round", "zq thought of a turn before"
# A short text with many tokens: enough for several of vLLM's blocks of 16 tokens, and for a sliding window to show its effect.
TINY = "Say: 1 2 3 4 5 6 7 8 9 8 7 6 5 4 3 2 1"
_COMPLETIONS = "/chat/completions"

Counts: TypeAlias = tuple[Usage, Usage]
T = TypeVar("T")


class Examined(Protocol):
    """The members of a `Server` that the doctor uses."""

    wire: Wire
    engine: str | None
    model: str | None
    context_size: int | None
    host_cache_mib: int | None
    embedded: bool
    unified: bool | None

    def take_slot(self) -> int | None: ...

    def release_slot(self, slot: int | None) -> None: ...


class NoAnswer(NamedTuple):
    """Placeholder for a missing answer, with the reason and what to do."""

    why: str
    then: str = ""


class ProbeResults(NamedTuple):
    """Answers to all questions. A question that failed has a `NoAnswer`."""

    props: llama_api.Props | NoAnswer
    models: list[llama_api.Model] | NoAnswer
    rounds: str | NoAnswer
    "Rendered prompt of one turn with two tool calls. It has the reasoning `THOUGHT_IN_ROUND`, and both spellings of arguments."
    turns: str | NoAnswer
    "Rendered prompt of two turns. The answer of the first has the reasoning `THOUGHT_BEFORE`."
    counts: Counts | NoAnswer
    "Usage of the first and of the second response to the same request."
    cleared: bool | None
    "True if a request on one slot emptied another slot, False if the other slots kept their tokens, None if unknown."


def probe(server: Examined) -> ProbeResults:
    """Send all requests of the doctor, and return the answers.

    Raises
    ------
    ServerRefused
        The server refuses the completion because the API key is missing or wrong.
    ServerUnreachable
        This `Server` was closed.

    Examples
    --------
    >>> from loopkit.server.opening import serve
    >>> with serve("tiny") as server:
    ...     [usage.cached_tokens for usage in probe(server).counts]
    [0, 57]
    """
    wire = server.wire
    wire.need_open()

    def rendered(conversation: dict[str, Any]) -> str | NoAnswer:
        body = encode(conversation)
        return _answer(lambda: llama_api.apply_template(wire, body, timeout=PATIENCE), wire, llama_api.TEMPLATE)

    def slots() -> list[llama_api.SlotState] | NoAnswer:
        return _answer(lambda: llama_api.slots(wire, PATIENCE), wire, llama_api.SLOTS)

    rounds, turns = rendered({"messages": _rounds(), "tools": [_TOOL]}), rendered({"messages": _TURNS})
    before, counts, after = slots(), _counts(server), slots()
    return ProbeResults(
        props=_answer(lambda: llama_api.props(wire, timeout=PATIENCE), wire, llama_api.PROPS),
        models=_answer(lambda: llama_api.models(wire, timeout=PATIENCE), wire, llama_api.MODELS),
        rounds=rounds,
        turns=turns,
        counts=counts,
        cleared=_cleared(before, after),
    )


def _answer(question: Callable[[], T], wire: Wire, path: str) -> T | NoAnswer:
    try:
        return question()
    except ServerError as error:
        return _no_answer(error, path, has_key=wire.has_key)


def _no_answer(error: ServerError, path: str, *, has_key: bool) -> NoAnswer:
    if isinstance(error, ServerRefused) and error.status != 200:
        then = "The key does not give access to it. Pass another key" if has_key else "Pass a key"
        return NoAnswer(f"HTTP {error.status} on {path}", then if error.status in KEY_REFUSED else "")
    if isinstance(error, ServerTimeout):
        return NoAnswer(f"no answer on {path} in time")
    if isinstance(error, ServerUnreachable):
        return NoAnswer("no connection", "Check that the server is running")
    return NoAnswer(f"unexpected response on {path}")


def _counts(server: Examined) -> Counts | NoAnswer:
    """Send the same short request twice and return the usage of both responses."""
    slot = server.take_slot()
    if server.embedded and not server.unified and slot is None:
        return NoAnswer("every slot is in use by an open session", "Close a session and try again")
    named = {} if server.model is None else {"model": server.model}
    pinned = {} if slot is None else {"id_slot": slot}
    body = encode({**named, "messages": [{"role": "user", "content": TINY}], "max_tokens": 1, **pinned})
    wire = server.wire
    try:
        first, second = (parse_completion(wire.ask(wire.api + _COMPLETIONS, body), wire.url).usage for _ in range(2))
    except ServerError as error:
        if isinstance(error, ServerRefused) and error.status in KEY_REFUSED:
            raise
        return _no_answer(error, _COMPLETIONS, has_key=wire.has_key)
    finally:
        server.release_slot(slot)
    return first, second


_TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},
}
_TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "One."},
    {"role": "assistant", "content": "Two.", "reasoning_content": THOUGHT_BEFORE},
    {"role": "user", "content": "Three."},
]


def _rounds() -> list[dict[str, Any]]:
    """Return the messages of one turn with two rounds. Each has one call, because some templates refuse several at once."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "One."}]
    # Some templates require call ids of nine characters.
    for id, arguments in (("callcall1", USUAL), ("callcall2", UNUSUAL)):
        call = {"type": "function", "id": id, "function": {"name": "look", "arguments": arguments}}
        messages += [
            {"role": "assistant", "content": "", "reasoning_content": THOUGHT_IN_ROUND, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": id, "name": "look", "content": "Two."},
        ]
    return messages


def _cleared(before: list[llama_api.SlotState] | NoAnswer, after: list[llama_api.SlotState] | NoAnswer) -> bool | None:
    """Return True if the request between the two states emptied a slot that it did not use.

    Return False if such a slot kept its tokens, and None if no slot was used before.
    """
    if isinstance(before, NoAnswer) or isinstance(after, NoAnswer):
        return None
    idle = {slot.id: slot for slot in before if not slot.busy and slot.task is not None}
    unused = [slot for slot in after if not slot.busy and slot.id in idle and slot.task == idle[slot.id].task]
    if any(slot.tokens for slot in unused):
        return False
    return True if any(slot.tokens == 0 for slot in unused) else None

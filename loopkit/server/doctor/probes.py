"""The questions of `Server.doctor`, and what came back; what it means is not judged here.

Reads only: properties, slots, models, and two conversations rendered with sentinel texts. The one exception is a completion of
one token, the same bytes twice: it alone shows whether cached counts are reported. A question without an answer is a `Silent`,
no error; it holds no words of the server, so none can repeat a key. Only a server that refuses the completion for its key is one:
there is nothing to say of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from loopkit.contract.records import Usage
from loopkit.encoding import encode
from loopkit.errors import ServerError, ServerRefused, ServerTimeout, ServerUnreachable
from loopkit.server.completion.assembly import whole
from loopkit.server.transport.refusals import KEY_REFUSED

if TYPE_CHECKING:
    from loopkit.server.client import Server

__all__ = ["Counts", "Findings", "Models", "Prompt", "Props", "Silent", "ask"]

PATIENCE = 10.0  # seconds for a question that needs no model
# Two spellings of arguments: as templates and most models write them, and with all that a parser loses.
USUAL, UNUSUAL = '{"zqb": "one", "zqa": 2}', '{"zqd":1.10,  "zqc": "\\u00e9"}'
THOUGHT_IN_ROUND, THOUGHT_BEFORE = "zq thought in a round", "zq thought of a turn before"
# Many tokens (vLLM keeps blocks of 16) in few bytes: a window that is longer than the prompt can be told from dense memory.
TINY = "Say: 1 2 3 4 5 6 7 8 9 8 7 6 5 4 3 2 1"


class Silent(NamedTuple):
    """Why there is no answer, and what to do about it."""

    why: str
    then: str = ""


class _Settings(msgspec.Struct):
    n_ctx: int | None = None


class Props(msgspec.Struct):
    """Of `/props`."""

    default_generation_settings: _Settings
    total_slots: int | None = None


class _Slot(msgspec.Struct):
    id: int
    is_processing: bool = False
    id_task: int | None = None
    n_prompt_tokens: int | None = None


class Prompt(msgspec.Struct):
    """Of `/apply-template`."""

    prompt: str


class _Meta(msgspec.Struct):
    n_ctx_train: int | None = None


class _Model(msgspec.Struct):
    meta: _Meta | None = None


class Models(msgspec.Struct):
    """Of `/v1/models`."""

    data: list[_Model]


Counts: TypeAlias = tuple[Usage, Usage]


class Findings(NamedTuple):
    """What came back."""

    props: Props | Silent
    models: Models | Silent
    rounds: Prompt | Silent
    "A turn of two calls, rendered, with `THOUGHT_IN_ROUND`, `USUAL` and `UNUSUAL` arguments."
    turns: Prompt | Silent
    "Two turns, rendered; the first has `THOUGHT_BEFORE`."
    counts: Counts | Silent
    "Of the same tiny request, sent twice."
    cleared: bool | None
    "Whether a slot that was not used is emptied by a request on another; None where nothing shows it."


_T = TypeVar("_T")


def ask(server: Server) -> Findings:
    """Put the questions.

    Raises
    ------
    ServerRefused, ServerUnreachable
        When the key is missing or wrong; when the server was closed here.

    Examples
    --------
    >>> from loopkit.server.client import serve
    >>> with serve("tiny") as server:
    ...     [usage.cached_tokens for usage in ask(server).counts]
    [0, 57]
    """
    server.wire.need_open()
    rounds = _ask(server, "/apply-template", {"messages": _rounds(), "tools": [_TOOL]}, Prompt)
    turns = _ask(server, "/apply-template", {"messages": _TURNS}, Prompt)
    before = _ask(server, "/slots", None, list[_Slot])
    counts = _counts(server)
    after = _ask(server, "/slots", None, list[_Slot])
    return Findings(
        props=_ask(server, "/props", None, Props),
        models=_ask(server, f"{server.wire.address.api}/models", None, Models),
        rounds=rounds,
        turns=turns,
        counts=counts,
        cleared=_cleared(before, after),
    )


def _ask(server: Server, path: str, body: dict[str, Any] | None, answer: type[_T]) -> _T | Silent:
    wire = server.wire
    url = path if path.startswith("http") else wire.url + path
    path = path.removeprefix(wire.url)
    try:
        return msgspec.json.decode(wire.ask(url, None if body is None else encode(body), timeout=PATIENCE), type=answer)
    except ServerError as error:
        return _silent(error, path, keyed=wire.keyed)
    except msgspec.MsgspecError:
        return Silent(f"an answer on {path} that is not a llama-server's")


def _silent(error: ServerError, path: str, *, keyed: bool) -> Silent:
    if isinstance(error, ServerRefused):
        then = "The key that was passed is not enough there" if keyed else "Pass its key"
        return Silent(f"HTTP {error.status} on {path}", then if error.status in KEY_REFUSED else "")
    if isinstance(error, ServerTimeout):
        return Silent(f"no answer on {path} in time")
    if isinstance(error, ServerUnreachable):
        return Silent("no connection", "Is the server running?")
    return Silent(f"an answer on {path} that is not understood")


def _counts(server: Server) -> Counts | Silent:
    """What the server reports of the same tiny request, sent twice."""
    slot = server.take_slot()
    if server.embedded and not server.unified and slot is None:
        return Silent("every slot is held by an open session", "Close one and ask again")
    named = {} if server.model is None else {"model": server.model}
    pinned = {} if slot is None else {"id_slot": slot}
    body = encode({**named, "messages": [{"role": "user", "content": TINY}], "max_tokens": 1, **pinned})
    url = f"{server.wire.address.api}/chat/completions"
    try:
        return whole(server.wire.ask(url, body), server.url).usage, whole(server.wire.ask(url, body), server.url).usage
    except ServerError as error:
        if isinstance(error, ServerRefused) and error.status in KEY_REFUSED:
            raise
        return _silent(error, "/chat/completions", keyed=server.wire.keyed)
    finally:
        server.release_slot(slot)


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
    """A turn of two rounds; each has one call, since some templates refuse more."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "One."}]
    for id, arguments in (("callcall1", USUAL), ("callcall2", UNUSUAL)):  # nine characters: some templates ask for that
        call = {"type": "function", "id": id, "function": {"name": "look", "arguments": arguments}}
        messages += [
            {"role": "assistant", "content": "", "reasoning_content": THOUGHT_IN_ROUND, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": id, "name": "look", "content": "Two."},
        ]
    return messages


def _cleared(before: list[_Slot] | Silent, after: list[_Slot] | Silent) -> bool | None:
    """Whether a slot that was not used is emptied by a request on another; None where nothing shows it."""
    if isinstance(before, Silent) or isinstance(after, Silent):
        return None
    idle = {slot.id: slot for slot in before if not slot.is_processing and slot.id_task is not None}
    same = [slot for slot in after if not slot.is_processing and slot.id in idle and slot.id_task == idle[slot.id].id_task]
    if any(slot.n_prompt_tokens for slot in same):
        return False
    return True if any(slot.n_prompt_tokens == 0 for slot in same) else None

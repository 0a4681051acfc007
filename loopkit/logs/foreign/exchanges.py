"""Requests that a log holds whole, with their answers, into entries: conversations are told apart by what stands in the bodies.

Every adapter of such a log gives its rows as `Exchange`, in the order of the file, and `told` does the rest. Knows no format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Raw, Struct

from loopkit.contract.provenance import Provenance, Record, Role
from loopkit.encoding import decode, decode_lenient, encode, sha256
from loopkit.logs.foreign.entries import Call, Entry, Said, rfc3339
from loopkit.logs.foreign.matching import Conversations, Placed
from loopkit.logs.foreign.text_source import Line, Source
from loopkit.logs.own.impossible_reuse import why_impossible
from loopkit.server.completion.usage import normalise

__all__ = ["Exchange", "facts_of", "inner", "instant", "told"]

FEW = 8
"So many requests before one are named as those that may have taken its slot."
ROLES = {
    "user": Role.User,
    **dict.fromkeys(("system", "developer"), Role.System),
    **dict.fromkeys(("tool", "function", "function_call_output"), Role.ToolResult),
}
PROVIDERS = {
    **dict.fromkeys(("openai", "azure", "azure_openai", "azure.ai.openai", "openai-chat", "openai-responses"), "openai"),
    **dict.fromkeys(("anthropic",), "anthropic"),
    **dict.fromkeys(("gemini", "vertex_ai", "google", "gcp.gemini", "gcp.vertex_ai", "gcp.gen_ai"), "gemini"),
    **dict.fromkeys(("vllm", "hosted_vllm"), "vllm"),
    **dict.fromkeys(("llama.cpp", "llamacpp", "llama_cpp"), "llama.cpp"),
    "deepseek": "deepseek",
}
"What logs call providers, and `loopkit.cache` calls engines."


class Exchange(Struct, frozen=True, kw_only=True):
    """A completed request."""

    body: bytes | None
    "What was sent; None where the log does not hold it."
    read: Callable[[], bytes] | None = None
    "Reads the body again; a ``functools.partial``."
    session: str | None = None
    "The conversation, or the group of them, that the log names; without one they are called after the file."
    key: str | None = None
    "The request's own id: the same with the same body again is the same request, told again."
    offset: int = 0
    "Where its line stands."
    sent: str | int | None = None
    facts: Mapping[str, Any]
    "More members of `loopkit.logs.foreign.entries.Call`: the usage, …"


def told(source: Source, exchanges: Iterable[Exchange], *, texts: bool, one_server: bool = False) -> Iterator[Entry]:
    """What exchanges say; of those without a body only those that one conversation names go on from one another.

    Parameters
    ----------
    source : Source
        Of which file.
    exchanges : iterable of Exchange
        In the order in which they were answered.
    texts : bool
        Whether messages have their records.
    one_server : bool
        Whether it is known that one server answered them all.
    """
    groups: dict[str, Conversations] = {}
    numbers: dict[tuple[str, int], int] = {}
    "Of each group's requests that have a body, its number in the file."
    last: dict[str, str] = {}
    answered: list[tuple[str, int, Any]] = []
    "Session and number of each request, and when it was sent."
    counts: Counter[str] = Counter()
    for number, one in enumerate(exchanges):
        group = one.session or source.path.stem
        before: str | None
        if one.body is None:
            placed, session = Placed(0, None, []), f"{group}.0"
            before = last.get(session) if one.session is not None else None
            since = 0
        else:
            found = groups.setdefault(group, Conversations())
            placed = found.place(one.body)
            numbers[group, len(found) - 1] = number
            session = f"{group}.{placed.conversation + 1}"
            follows = None if placed.follows is None else numbers[group, placed.follows]
            before = None if follows is None else str(follows)
            since = 0 if follows is None else follows + 1
        others = answered[max(since, number - FEW) :] if one_server else ()
        counts[session] += 1
        answered.append((session, counts[session], one.sent))
        for index, message in enumerate(placed.new):
            link = {"session": session, "id": f"{number}.{index}", "parent": before, "time": one.sent}
            yield _said(message, link, one.offset if texts else None)
            before = f"{number}.{index}"
        digest = None if one.body is None else sha256(one.body)
        key = None if one.key is None else one.key if digest is None else f"{one.key} {digest[:16]}"
        last[session] = str(number)
        yield Call(
            session=session,
            id=str(number),
            parent=before,
            key=key,
            sent=one.sent,
            request_bytes=None if one.body is None else len(one.body),
            request_sha256=digest,
            others=tuple((name, request) for name, request, sent in others if name != session and sent < one.sent),
            body=one.read,
            **one.facts,
        )


def inner(raw: Raw) -> bytes:
    r"""A member that is JSON, or a string that holds JSON; nothing where it is neither, or absent.

    Examples
    --------
    >>> inner(Raw(b'"{\\"n\\":1}"')), inner(Raw(b'{"n":1}')), inner(Raw(b'"no"')), inner(Raw())
    (b'{"n":1}', b'{"n":1}', b'', b'')
    """
    data = bytes(raw)
    if data[:1] == b'"':
        try:
            data = decode(data, str).encode()
        except ValueError:
            return b""
    return data if data.lstrip()[:1] in (b"{", b"[") else b""


def instant(value: Any) -> str | int | None:
    """A time as a log has it: text as it is, a number as microseconds, taken for seconds, milliseconds, … by its size.

    Examples
    --------
    >>> instant(1796029200), instant(1796029200.5), instant(1796029200000), instant("2026-11-30T09:00:00Z"), instant(True)
    (1796029200000000, 1796029200500000, 1796029200000000, '2026-11-30T09:00:00Z', None)
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e20:
        return None
    unit = next(unit for largest, unit in ((1e11, 1e6), (1e14, 1e3), (1e17, 1), (1e20, 1e-3)) if value < largest)
    return round(value * unit)


def facts_of(source: Source, line: Line, response: bytes, usage: Any = None, provider: Any = None) -> dict[str, Any] | None:
    """What an answer says of itself, for `Exchange.facts`; None where it is an error.

    Parameters
    ----------
    source : Source
        Takes counts that do not add up.
    line : Line
        The answer's, to name it where they are impossible.
    response : bytes
        An answer, or a list of a stream's chunks, of which the last that says something holds; b"" where there is none.
    usage : mapping, optional
        The counts, where the log has them apart from the answer.
    provider : str, optional
        As the log names it.
    """
    try:
        value = decode_lenient(response or b"{}")
    except ValueError:
        value = {}
    found: dict[str, Any] = {}
    finish = None
    for chunk in _dicts(value if isinstance(value, list) else [value]):
        found |= {name: each for name, each in chunk.items() if each is not None}
        finish = _finish(chunk) or finish
    if found.get("error"):
        return None
    counts, timings = (each if isinstance(each, dict) else None for each in (found.get("usage") or usage, found.get("timings")))
    counted = normalise(counts, timings)
    if counted.fault is not None and counted.impossible is None:
        source.left_out("counts that do not add up")
    engine = PROVIDERS.get(str(provider).lower())
    if provider is None:
        engine = "llama.cpp" if timings else "openai" if str(found.get("system_fingerprint")).startswith("fp_") else None
        engine = "anthropic" if counts and "input_tokens" in counts and "cache_read_input_tokens" in counts else engine
    why = counted.impossible or why_impossible(counted.usage.cached_tokens, counted.usage.prompt_tokens, engine)
    if why is not None:
        source.impossible(line, why)
    texts = {"response": found.get("id"), "model": found.get("model"), "finish": finish}
    return {"usage": counted.usage, "engine": engine, **{name: text for name, text in texts.items() if isinstance(text, str)}}


def _finish(chunk: dict[str, Any]) -> Any:
    details = chunk.get("incomplete_details")
    choices = _dicts(chunk.get("choices"))
    reasons = [choices[0].get("finish_reason") if choices else None, chunk.get("stop_reason"), chunk.get("stop_type")]
    reasons += [details.get("reason") if isinstance(details, dict) else None]
    return next((reason for reason in reasons if reason), chunk.get("status") if chunk.get("object") == "response" else None)


def _said(message: bytes, link: dict[str, Any], offset: int | None) -> Said:
    """A message of a body; with its text where the offset of its line is given."""
    try:
        value: Any = decode_lenient(message)
    except ValueError:
        value = None
    value = value if isinstance(value, dict) else {}
    role = ROLES.get(str(value.get("role") or value.get("type")), Role.Assistant)
    content = value.get("content", value.get("output"))
    blocks = _dicts(content)
    results = sum(block.get("type") == "tool_result" for block in blocks) or int(role is Role.ToolResult)
    role = Role.ToolResult if results else role
    said = None
    if offset is not None:
        texts = [content] if isinstance(content, str) else [_text(block) for block in blocks]
        made = [_call(each.get("function", each)) for each in (value, *blocks, *_dicts(value.get("tool_calls")))]
        where = Provenance(link["session"], offset)
        said = Record(role, "\n".join(filter(None, texts + made)), rfc3339(link["time"]), where)
    tool = value.get("name") if results and isinstance(value.get("name"), str) else None
    return Said(**link, role=role, asks=role is Role.User, results=results, tool=tool, record=said)


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(block: dict[str, Any]) -> str:
    return next((block[name] for name in ("text", "thinking", "content") if isinstance(block.get(name), str)), "")


def _call(made: Any) -> str:
    """A call, as it is written; nothing where it is none."""
    given = None if not isinstance(made, dict) else made.get("arguments", made.get("input"))
    return "" if given is None else f"{made.get('name')}({given if isinstance(given, str) else encode(given).decode()})"

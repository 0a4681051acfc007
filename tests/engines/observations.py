"""Made observations of two requests, and of others between them, for tests of diagnoses."""

from __future__ import annotations

from array import array
from typing import Any, TypeAlias

from loopkit.cache.losses.judge import judge
from loopkit.contract.records import Usage
from loopkit.encoding import encode
from loopkit.engines.evidence.observation import Counters, Observation
from loopkit.engines.evidence.tokens import Run, TokenView

Wanted: TypeAlias = tuple[str, str, str | None, str | None]
"Cause, certainty, who can fix it, and the beginning of the location."
Case: TypeAlias = tuple[str, Observation, Observation, list[Observation], Wanted]
"Name, previous request, this request, others between them, and the expected diagnosis."

U1, A1, U2 = ({"role": role, "content": text} for role, text in (("user", "Hi."), ("assistant", "Done."), ("user", "More.")))
SYSTEM = {"role": "system", "content": "Be brief."}


def body(*messages: Any, **members: Any) -> bytes:
    return encode({**members, "messages": [SYSTEM, *messages]})


def view(*parts: tuple[str, str]) -> TokenView:
    """A prompt of one-byte tokens, given as labels and texts."""
    text = "".join(each for _, each in parts)
    runs, at = [], 0
    for label, each in parts:
        runs.append(Run(label, at, at + len(each.encode())))
        at += len(each.encode())
    return TokenView(array("i", list(text.encode())), text, array("i", range(at + 1)), tuple(runs), exact=True)


HEAD = (("template", "["), ("messages[0].content", "Be brief." * 20), ("template", "]["), ("messages[1].content", "Hi."))
BEFORE = view(*HEAD, ("template", "]:"))
AFTER = view(
    *HEAD,
    ("template", "]:"),
    ("messages[2].content", "Done."),
    ("template", "]["),
    ("messages[3].content", "More."),
    ("template", "]:"),
)
WRITTEN = 6  # "Done." and its end
KEPT = len(BEFORE) + WRITTEN - 1


def counters(
    held: int | None, total: int, *, build: str | None = "b1", host: int | None = 0, other: int | None = None
) -> Counters:
    return Counters(slots=(held, other), read=total, cached=0, written=0, build=build, host_cache_mib=host)


def first(**more: Any) -> Observation:
    usage = Usage(prompt_tokens=len(BEFORE), cached_tokens=0, completion_tokens=WRITTEN)
    known: dict[str, Any] = {"tokens": BEFORE, "after": counters(KEPT, 300), **more}
    return Observation(usage=usage, session="a", request=1, slot=0, body=body(U1), engine="llama.cpp", **known)


def second(cached: int, **more: Any) -> Observation:
    usage = Usage(prompt_tokens=len(AFTER), cached_tokens=cached, completion_tokens=WRITTEN)
    known: dict[str, Any] = {
        "body": body(U1, A1, U2),
        "tokens": AFTER,
        "before": counters(KEPT, 300),
        "engine": "llama.cpp",
        **more,
    }
    return Observation(usage=usage, session="a", request=2, slot=0, **known)


def other(tokens: TokenView | None = None, **more: Any) -> Observation:
    size = 100 if tokens is None else len(tokens)
    usage = Usage(prompt_tokens=size, cached_tokens=0, completion_tokens=1)
    return Observation(usage=usage, session="b", request=7, tokens=tokens, **{"slot": 0, **more})


ELSEWHERE = view(("template", "["), ("messages[0].content", "Something else." * 9))
SHARES_HALF = view(*HEAD[:3], ("messages[1].content", "Quite another question."))


def hosted(engine: str, cached: int, *, minutes: int = 1, **more: Any) -> tuple[Observation, Observation]:
    """Two requests at a provider, so many minutes apart, whose bodies extend."""
    before = Observation(
        usage=Usage(prompt_tokens=5000, completion_tokens=50), engine=engine, body=body(U1), time="2026-11-30T07:00:00.000000Z"
    )
    time = f"2026-11-30T{7 + minutes // 60:02}:{minutes % 60:02}:00.000000Z"
    known: dict[str, Any] = {"body": body(U1, A1, U2), "time": time, "elapsed_ms": 1000.0, **more}
    return before, Observation(usage=Usage(prompt_tokens=5100, cached_tokens=cached), engine=engine, **known)


def check_diagnosis(previous: Observation, now: Observation, between: list[Observation], wanted: Wanted) -> None:
    """Check a diagnosis, and that its evidence is plain JSON."""
    found = judge(previous, now, between)
    assert (found.cause, found.certainty, found.fixable_by) == wanted[:3], found.evidence
    assert wanted[3] is None or str(found.location).startswith(wanted[3])
    assert encode(found.evidence)

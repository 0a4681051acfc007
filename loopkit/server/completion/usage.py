"""Usage dialects: what a response says of its tokens, as `loopkit.contract.records.Usage`.

A dialect is recognised by the members that the response holds, never by the server's name, and each states whether its prompt
count includes the cached tokens. Null and absent are None, never 0; nothing is derived that the server did not count. Numbers
that do not add up are said, so that the caller can keep the server's own words. Pure: knows nothing of streams or HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from loopkit.contract.records import Usage

__all__ = ["DIALECTS", "Dialect", "Normalised", "normalise"]

LARGEST = 1 << 53  # of what every JSON reader holds exactly; sums of counts still fit a record


class Dialect(NamedTuple):
    """How one family of servers names its counts; of several names the first that holds a number counts."""

    name: str
    marks: tuple[str, ...]
    "Members of which one is there in this dialect; the first dialect of the table that matches is taken."
    inclusive: bool
    "Whether the prompt count includes cached and cache-written tokens."
    prompt: str
    completion: str
    cached: tuple[str, ...]
    written: tuple[str, ...]
    reasoning: tuple[str, ...]
    fresh: tuple[str, ...] = ()
    "Prompt tokens that were not cached, where they are counted too; only to see whether all adds up."


DIALECTS = (
    Dialect(
        name="chat completions",
        marks=("prompt_tokens", "completion_tokens"),
        inclusive=True,
        prompt="prompt_tokens",
        completion="completion_tokens",
        cached=(
            "prompt_tokens_details.cached_tokens",  # OpenAI, llama.cpp, vLLM, SGLang, xAI, Mistral, OpenRouter, LiteLLM
            "prompt_cache_hit_tokens",  # DeepSeek
            "cached_tokens",  # Moonshot
            "num_cached_tokens",  # Mistral
            "cache_read_input_tokens",  # gateways before Anthropic that add up the prompt anew
        ),
        written=(
            "prompt_tokens_details.cache_write_tokens",  # OpenAI, OpenRouter
            "prompt_tokens_details.created_cache_tokens",  # vLLM
            "prompt_tokens_details.cache_creation_tokens",  # LiteLLM
            "cache_creation_input_tokens",
        ),
        reasoning=("completion_tokens_details.reasoning_tokens", "reasoning_tokens"),  # the second: SGLang
        fresh=("prompt_cache_miss_tokens",),  # DeepSeek
    ),
    Dialect(
        name="Anthropic",
        marks=("cache_read_input_tokens", "cache_creation_input_tokens"),
        inclusive=False,
        prompt="input_tokens",
        completion="output_tokens",
        cached=("cache_read_input_tokens",),
        written=("cache_creation_input_tokens",),
        reasoning=("output_tokens_details.thinking_tokens",),
    ),
    Dialect(
        name="Responses",
        marks=("input_tokens", "output_tokens"),
        inclusive=True,
        prompt="input_tokens",
        completion="output_tokens",
        cached=("input_tokens_details.cached_tokens",),
        written=("input_tokens_details.cache_write_tokens",),
        reasoning=("output_tokens_details.reasoning_tokens",),
    ),
)


class Normalised(NamedTuple):
    """What a response said of its tokens."""

    usage: Usage
    fault: str | None
    "What does not add up, for a person; None where all does."
    impossible: str | None = None
    "Of that, a cached count above the prompt that should include it."


class _Reader:
    """Counts by path out of one object; a member that is there and no count is a fault."""

    def __init__(self, source: Mapping[str, Any], faults: list[str]) -> None:
        self._source, self._faults = source, faults

    def _find(self, path: str) -> Any:
        value: Any = self._source
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def count(self, *paths: str) -> int | None:
        for path in paths:
            value = self._find(path)
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if type(value) is int and 0 <= value <= LARGEST:
                return value
            if value is not None:
                self._faults.append(f"{path} is {ascii(value)[:40]}, not a count")
        return None

    def milliseconds(self, path: str) -> float | None:
        value = self._find(path)
        if type(value) in (int, float) and 0 <= value <= LARGEST:
            return float(value)
        return None


def normalise(usage: Mapping[str, Any] | None, timings: Mapping[str, Any] | None = None) -> Normalised:
    """Read the counts of a response.

    Parameters
    ----------
    usage : mapping or None
        The response's ``usage``, from wherever it stood.
    timings : mapping or None
        llama.cpp's ``timings``; its ``cache_n`` and ``prompt_n`` win over `usage` where both stand.

    Returns
    -------
    Normalised
        The usage, and what does not add up. A cached count above an inclusive prompt count is not taken over: it is None.

    Examples
    --------
    >>> read = normalise({"prompt_tokens": 25, "completion_tokens": 8, "prompt_tokens_details": None})
    >>> read.usage.prompt_tokens, read.usage.cached_tokens, read.fault
    (25, None, None)
    >>> normalise({"input_tokens": 5, "cache_read_input_tokens": 20, "output_tokens": 8}).usage.prompt_tokens
    25
    >>> normalise({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 20}}).fault
    'cached tokens 20 are more than the prompt of 5 that should include them'
    """
    faults: list[str] = []
    impossible: list[str] = []
    found = _from_usage(usage or {}, faults, impossible)
    if timings:
        found = _with_timings(found, _Reader(timings, faults), faults)
    return Normalised(found, "; ".join(faults) or None, impossible[0] if impossible and found.cached_tokens is None else None)


def _from_usage(usage: Mapping[str, Any], faults: list[str], impossible: list[str]) -> Usage:
    dialect = next((each for each in DIALECTS if any(mark in usage for mark in each.marks)), None)
    if dialect is None:
        return Usage()
    read = _Reader(usage, faults)
    prompt, cached, written = read.count(dialect.prompt), read.count(*dialect.cached), read.count(*dialect.written)
    completion, reasoning = read.count(dialect.completion), read.count(*dialect.reasoning)
    total = read.count("total_tokens")
    if prompt is not None and not dialect.inclusive:
        if cached is None:
            faults.append(f"{dialect.prompt} {prompt} leaves cached tokens out, and their number is not given")
        prompt = None if cached is None else prompt + cached + (written or 0)
    if prompt is not None and cached is not None and cached > prompt:
        impossible.append(f"cached tokens {cached} are more than the prompt of {prompt} that should include them")
        faults += impossible
        cached = None
    if prompt is not None and written is not None and (cached or 0) + written > prompt:
        faults.append(
            f"cached tokens {cached} and written {written} are more than the prompt of {prompt} that should include them"
        )
        written = None
    fresh = read.count(*dialect.fresh)
    if None not in (prompt, cached, fresh) and (cached or 0) + (fresh or 0) != prompt:
        faults.append(f"cached tokens {cached} and {fresh} not cached do not make the prompt of {prompt}")
    if prompt is not None and completion is not None and total is not None and total != prompt + completion:
        if reasoning and total == prompt + completion + reasoning:  # xAI counts reasoning beside the completion
            completion += reasoning
        else:
            faults.append(f"the total is {total}, but prompt {prompt} and completion {completion} make {prompt + completion}")
    if completion is not None and reasoning is not None and reasoning > completion:
        faults.append(f"reasoning tokens {reasoning} are more than the completion of {completion} that should include them")
    return Usage(
        prompt_tokens=prompt,
        cached_tokens=cached,
        cache_write_tokens=written,
        completion_tokens=completion,
        reasoning_tokens=reasoning,
    )


def _with_timings(usage: Usage, read: _Reader, faults: list[str]) -> Usage:
    prompt, cached, completion = usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
    taken, evaluated = read.count("cache_n"), read.count("prompt_n")
    if taken is not None and evaluated is not None:
        if prompt is not None and prompt != taken + evaluated:
            faults.append(f"the prompt is {prompt}, but timings say {taken} cached and {evaluated} read")
        if cached is not None and cached != taken:
            faults.append(f"cached tokens are {cached}, but timings say {taken}")
        prompt, cached = taken + evaluated, taken
    return Usage(
        prompt_tokens=prompt,
        cached_tokens=cached,
        cache_write_tokens=usage.cache_write_tokens,
        completion_tokens=read.count("predicted_n") if completion is None else completion,
        reasoning_tokens=usage.reasoning_tokens,
        prompt_ms=read.milliseconds("prompt_ms"),
        predicted_ms=read.milliseconds("predicted_ms"),
    )

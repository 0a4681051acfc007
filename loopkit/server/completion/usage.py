"""Usage dialects: token counts of every API, llama.cpp's timings, and counts that contradict each other.

A dialect describes how one family of servers reports token counts: the names of the members, and whether the prompt count
includes the cached tokens. It is recognised by the names of the members in the response, not by the name of the server. Counts
that are null or missing become None. If counts contradict each other, `normalise` also returns why, so that the caller can keep
the server's original usage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from loopkit.contract.records import Usage

__all__ = ["DIALECTS", "Dialect", "Normalised", "normalise"]

LARGEST = 1 << 53  # every JSON reader represents integers up to this number exactly, and a record can store sums of such counts


class Dialect(NamedTuple):
    """Names of the members in which one family of servers reports its counts.

    A dot separates nested names. If several names are listed for a count, the first one with a number is used.
    """

    name: str
    marks: tuple[str, ...]
    "Members that identify the dialect. One of them is enough. `DIALECTS` is searched in order."
    inclusive: bool
    "True if the prompt count includes the tokens read from the cache and those written to it."
    prompt: str
    completion: str
    cached: tuple[str, ...]
    written: tuple[str, ...]
    reasoning: tuple[str, ...]
    fresh: tuple[str, ...] = ()
    "Names of the count of prompt tokens that were not cached. It is used only to check the other counts."


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
            "cache_read_input_tokens",  # gateways to Anthropic that add up the tokens of the prompt themselves
        ),
        written=(
            "prompt_tokens_details.cache_write_tokens",  # OpenAI, OpenRouter
            "prompt_tokens_details.created_cache_tokens",  # vLLM
            "prompt_tokens_details.cache_creation_tokens",  # LiteLLM
            "cache_creation_input_tokens",
        ),
        reasoning=("completion_tokens_details.reasoning_tokens", "reasoning_tokens"),  # SGLang uses the second name
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
    """The token counts of a response in loopkit's form, and their inconsistencies."""

    usage: Usage
    "The counts, with the same names and meaning for every server."
    fault: str | None
    "Text that names all inconsistencies of the reported counts; None if there are none."
    impossible: str | None = None
    "Text for one inconsistency: more tokens were cached than the prompt has. None otherwise."


class _Counts:
    """Reader of the counts in one object. If a member is not a count, a message about it is added to `faults`."""

    def __init__(self, source: Mapping[str, Any], faults: list[str]) -> None:
        self._source, self._faults = source, faults

    def _find(self, path: str) -> Any:
        value: Any = self._source
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def count(self, *paths: str) -> int | None:
        """Return the count at the first path that has one, or None. A path is member names separated by dots."""
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
        """Return the number of milliseconds at a path, or None."""
        value = self._find(path)
        if type(value) in (int, float) and 0 <= value <= LARGEST:
            return float(value)
        return None


def normalise(usage: Mapping[str, Any] | None, timings: Mapping[str, Any] | None = None) -> Normalised:
    """Convert the token counts of any server's response to a `Usage`, and check them.

    Parameters
    ----------
    usage : mapping or None
        The response's ``usage``.
    timings : mapping or None
        The response's ``timings``, which llama.cpp adds. Its counts ``cache_n`` and ``prompt_n`` take precedence over `usage`.

    Returns
    -------
    Normalised
        The usage, and the inconsistencies of the reported counts. If more tokens are reported as cached than the prompt has, the
        cached count becomes None.

    Examples
    --------
    >>> normalised = normalise({"prompt_tokens": 25, "completion_tokens": 8, "prompt_tokens_details": None})
    >>> normalised.usage.prompt_tokens, normalised.usage.cached_tokens, normalised.fault
    (25, None, None)
    >>> normalise({"input_tokens": 5, "cache_read_input_tokens": 20, "output_tokens": 8}).usage.prompt_tokens
    25
    >>> normalise({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 20}}).fault
    'cached tokens 20 are more than the prompt of 5 that should include them'
    """
    faults: list[str] = []
    impossible: list[str] = []
    counts = _from_usage(usage or {}, faults, impossible)
    if timings:
        counts = _with_timings(counts, _Counts(timings, faults), faults)
    return Normalised(counts, "; ".join(faults) or None, impossible[0] if impossible and counts.cached_tokens is None else None)


def _from_usage(usage: Mapping[str, Any], faults: list[str], impossible: list[str]) -> Usage:
    dialect = next((each for each in DIALECTS if any(mark in usage for mark in each.marks)), None)
    if dialect is None:
        return Usage()
    counts = _Counts(usage, faults)
    prompt, cached, written = counts.count(dialect.prompt), counts.count(*dialect.cached), counts.count(*dialect.written)
    completion, reasoning = counts.count(dialect.completion), counts.count(*dialect.reasoning)
    total = counts.count("total_tokens")
    if prompt is not None and not dialect.inclusive:
        if cached is None:
            faults.append(f"{dialect.prompt} {prompt} excludes cached tokens, and the number of cached tokens is missing")
        prompt = None if cached is None else prompt + cached + (written or 0)
    if prompt is not None and cached is not None and cached > prompt:
        impossible.append(f"cached tokens {cached} are more than the prompt of {prompt} that should include them")
        faults += impossible
        cached = None
    if prompt is not None and written is not None and (cached or 0) + written > prompt:
        faults.append(
            f"cached tokens {cached} and cache writes {written} are more than the prompt of {prompt} that should include them"
        )
        written = None
    fresh = counts.count(*dialect.fresh)
    if None not in (prompt, cached, fresh) and (cached or 0) + (fresh or 0) != prompt:
        faults.append(f"cached tokens {cached} and uncached tokens {fresh} do not add up to the prompt of {prompt}")
    if prompt is not None and completion is not None and total is not None and total != prompt + completion:
        if reasoning and total == prompt + completion + reasoning:  # xAI's completion count excludes reasoning
            completion += reasoning
        else:
            faults.append(
                f"the total is {total}, but prompt {prompt} and completion {completion} add up to {prompt + completion}"
            )
    if completion is not None and reasoning is not None and reasoning > completion:
        faults.append(f"reasoning tokens {reasoning} are more than the completion of {completion} that should include them")
    return Usage(
        prompt_tokens=prompt,
        cached_tokens=cached,
        cache_write_tokens=written,
        completion_tokens=completion,
        reasoning_tokens=reasoning,
    )


def _with_timings(usage: Usage, timings: _Counts, faults: list[str]) -> Usage:
    prompt, cached, completion = usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
    reused, processed = timings.count("cache_n"), timings.count("prompt_n")
    if reused is not None and processed is not None:
        if prompt is not None and prompt != reused + processed:
            faults.append(f"the prompt is {prompt}, but timings report {reused} cached and {processed} processed")
        if cached is not None and cached != reused:
            faults.append(f"cached tokens are {cached}, but timings report {reused}")
        prompt, cached = reused + processed, reused
    return Usage(
        prompt_tokens=prompt,
        cached_tokens=cached,
        cache_write_tokens=usage.cache_write_tokens,
        completion_tokens=timings.count("predicted_n") if completion is None else completion,
        reasoning_tokens=usage.reasoning_tokens,
        prompt_ms=timings.milliseconds("prompt_ms"),
        predicted_ms=timings.milliseconds("predicted_ms"),
    )

"""The cost of requests and of their cache losses, in money and in seconds.

The caller passes the prices, because prices change. Requests with unknown token counts are not priced; `Cost.priced` is the
number of requests that are. Seconds are computed with each server's prompt processing speed, which
:mod:`loopkit.cache.reading_speed` estimates from the prompt times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias

from loopkit.cache.losses.judge import expected_of
from loopkit.cache.reading_speed import ReadingLine, reading_line
from loopkit.engines.evidence.observation import Observation
from loopkit.errors import InvalidConfig, kind_of
from loopkit.reprs import Card, counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Cost", "Prices", "cost"]

COUNTS = ("prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens")

Columns: TypeAlias = "Mapping[str, NDArray[Any]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices per million tokens. All have the same currency, which can be any.

    Examples
    --------
    >>> Prices(uncached=3, cached=0.3, cache_write=3.75, output=15)
    Prices(uncached=3, cached=0.3, cache_write=3.75, output=15)
    >>> Prices(uncached=3, cached=-1, cache_write=None, output=15)
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: prices.cached: -1 is not a price. Give 0 or more, per million tokens
    """

    uncached: float
    "Price of prompt tokens that were neither read from the cache nor written to it."
    cached: float
    "Price of prompt tokens read from the cache."
    cache_write: float | None
    "Price of prompt tokens written to the cache; None if they cost the same as uncached tokens."
    output: float
    "Price of completion tokens."

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if value is None and name == "cache_write":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise InvalidConfig(f"prices.{name}", f"{value!r} is not a price", "Give 0 or more, per million tokens")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Cost:
    """Result of `cost`: amounts in the currency of the prices, and times in seconds. None means unknown."""

    requests: int
    "Number of requests."
    priced: int
    "Number of requests whose counts are all known and possible. `spent` covers these."
    spent: float | None
    "Money spent on the priced requests."
    parts: Mapping[str, float]
    "`spent`, divided into ``uncached``, ``cached``, ``cache_write`` and ``output`` tokens; empty if no request is priced."
    judged: int
    "Number of requests whose lost tokens (possibly 0) and their price are known. The `lost*` fields cover these."
    lost_tokens: int | None
    "Number of lost tokens: tokens that should have been cached and were not."
    lost: float | None
    "Additional cost of the lost tokens, compared with a cache hit. Tokens that were written again have the write price."
    lost_seconds: float | None
    "Estimated seconds to process the lost tokens, by the fitted lines in `lines`."
    lost_seconds_interval: tuple[float, float] | None
    "Lower and upper end of `lost_seconds`: the sums of the lines' 95 % intervals. It is wider than a 95 % interval of the sum."
    timed_tokens: int
    "Number of lost tokens on servers that have a fitted line. `lost_seconds` covers these."
    lines: Mapping[str, ReadingLine]
    "The fitted line of each server, by the server's name."

    def _card(self) -> Card:
        spent = "unknown" if self.spent is None else _money(self.spent)
        lost = "unknown"
        if self.lost is not None and self.lost_tokens is not None:
            lost = f"{counted(self.lost_tokens, 'token')} for {_money(self.lost)}"
        spent += "" if self.priced == self.requests else f" ({self.priced:,} priced)"
        lost += "" if self.judged == self.requests else f" ({self.judged:,} judged)"
        facts = [("spent", spent), ("lost", lost)]
        if self.lost_seconds is not None and self.lost_seconds_interval is not None:
            low, high = self.lost_seconds_interval
            facts.append(("time lost", f"{self.lost_seconds:,.3g} s ({low:,.3g} to {high:,.3g})"))
        parts = sorted(self.parts.items(), key=lambda item: -item[1])
        return Card(f"Cost of {counted(self.requests, 'request')}", facts + [(name, _money(part)) for name, part in parts])

    def __repr__(self) -> str:
        return self._card().text()

    def __str__(self) -> str:
        return self._card().whole()

    def _repr_html_(self) -> str:
        return self._card().html()


def cost(requests: Mapping[str, Any] | Iterable[Observation] | Any, prices: Prices) -> Cost:
    """Return what requests cost and what their cache losses cost.

    Parameters
    ----------
    requests : Logs, DataFrame, mapping of columns, or iterable of Observation
        From ``Logs``, replays are left out; use ``cost(logs.usage, prices)`` to include them. A frame or a dict of arrays needs
        the column ``prompt_tokens`` and may have the other columns of ``Logs.usage``. The column ``server`` (without it,
        ``model``) tells servers apart. `diagnose` takes the same observations.
    prices : Prices
        Prices per million tokens.

    Returns
    -------
    Cost
        Money spent, and money and seconds lost, with the number of requests that each covers.

    Raises
    ------
    InvalidConfig
        If `requests` has another type, a column has values that are not numbers, or the columns differ in length.

    Examples
    --------
    >>> prices = Prices(uncached=3, cached=0.3, cache_write=None, output=15)
    >>> counts = {"prompt_tokens": [50_000, 51_000], "cached_tokens": [0, 1_000], "completion_tokens": [100, 100]}
    >>> cost({**counts, "lost_tokens": [0, 49_000]}, prices)
    Cost of 2 requests: spent 0.303, lost 49,000 tokens for 0.132, uncached 0.3, output 0.003, … 2 more
    >>> cost({**counts, "cached_tokens": [0, None], "lost_tokens": [0, None]}, prices).spent     # only the first is priced
    0.1515
    """
    import numpy as np

    columns = _columns(requests)
    prompt, cached, written, output = (columns[name] for name in COUNTS)
    lost, at = columns["lost_tokens"], prices.cache_write
    if at is None:
        written, at = np.zeros_like(prompt), 0.0
    amounts = {
        "uncached": (prompt - cached - written) * prices.uncached / 1e6,
        "cached": cached * prices.cached / 1e6,
        "cache_write": written * at / 1e6,
        "output": output * prices.output / 1e6,
    }
    each = np.sum(list(amounts.values()), axis=0)
    # Requests with impossible counts, such as more cached than prompt tokens, are not priced.
    sound = np.all([columns[name] >= 0 for name in COUNTS if name != "cache_write_tokens"] + [written >= 0], axis=0)
    priced = np.isfinite(each) & sound & (cached + written <= prompt)
    again = np.where(
        lost == 0, 0, np.minimum(lost, written)
    )  # lost tokens precede the new ones, so they are the first that are written to the cache
    dearer = (again * at + (lost - again) * prices.uncached - lost * prices.cached) / 1e6
    judged = np.isfinite(dearer) & (lost >= 0)
    priced_losses = judged.any() and bool((lost > 0).any() <= (judged & (lost > 0)).any())  # losses without a price are not free
    lines, seconds, timed = _lines(columns), np.zeros(3), 0.0
    for server, line in lines.items():
        tokens = float(lost[judged & (columns["server"] == server)].sum())
        seconds += tokens * np.array([line.seconds_per_token, line.low, line.high])
        timed += tokens
    known = bool(judged.any() and lines)
    return Cost(
        requests=len(prompt),
        priced=int(priced.sum()),
        spent=float(each[priced].sum()) if priced.any() else None,
        parts={name: float(amount[priced].sum()) for name, amount in amounts.items()} if priced.any() else {},
        judged=int(judged.sum()),
        lost_tokens=int(lost[judged].sum()) if priced_losses else None,
        lost=float(dearer[judged].sum()) if priced_losses else None,
        lost_seconds=float(seconds[0]) if known else None,
        lost_seconds_interval=(float(seconds[1]), float(seconds[2])) if known else None,
        timed_tokens=int(timed),
        lines=lines,
    )


def _lines(columns: Columns) -> dict[str, ReadingLine]:
    """Return the fitted line of each server that has enough prompt times, by the server's name."""
    read = columns["prompt_tokens"] - columns["cached_tokens"]
    found = {}
    for server in dict.fromkeys(columns["server"].tolist()):
        theirs = columns["server"] == server
        line = reading_line(read[theirs], columns["prompt_ms"][theirs])
        if line is not None:
            found[server] = line
    return found


def _columns(requests: Any) -> Columns:
    """Return the counts, prompt times and server names as arrays of equal length. NaN means unknown."""
    import numpy as np

    if not hasattr(requests, "keys") and hasattr(requests, "usage") and hasattr(requests, "sessions"):
        sessions = requests.sessions
        replays = set(sessions["session"][sessions["source"] == "replay"])
        usage = requests.usage
        requests = usage[~usage["session"].isin(replays)]
    if not hasattr(requests, "keys"):
        if not isinstance(requests, Iterable):
            raise InvalidConfig(
                "requests", f"expected Logs or a frame; got {kind_of(requests)}", "Give Logs, or a frame like Logs.usage"
            )
        requests = _of_seen(requests)
    if "prompt_tokens" not in requests:
        raise InvalidConfig("requests", "the column prompt_tokens is missing", "Give a frame like Logs.usage")
    size = len(requests["prompt_tokens"])
    names = (*COUNTS, "lost_tokens", "prompt_ms")
    columns = {}
    for name in names:
        try:
            columns[name] = np.asarray(requests[name] if name in requests else [None] * size, float)
        except (TypeError, ValueError) as error:
            raise InvalidConfig(f"requests[{name!r}]", f"expected numbers: {error}", "Give a frame like Logs.usage") from error
    named = next((requests[name] for name in ("server", "model") if name in requests), [""] * size)
    columns["server"] = np.array([each if isinstance(each, str) else "" for each in named], object)
    if any(len(column) != size for column in columns.values()):
        raise InvalidConfig("requests", "the columns differ in length", "Give a frame like Logs.usage")
    return columns


def _of_seen(requests: Iterable[object]) -> Mapping[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in (*COUNTS, "prompt_ms", "lost_tokens", "server")}
    latest: dict[tuple[str | None, int], Observation] = {}
    for seen in requests:
        if not isinstance(seen, Observation):
            why = f"{kind_of(seen)} has no usage"
            raise InvalidConfig("requests", why, "Give a frame like Logs.usage, or observations(session)")
        expected = expected_of(latest.get((seen.session, seen.epoch)), seen)
        latest[seen.session, seen.epoch] = seen
        known = seen.usage.cached_tokens is not None and expected.expected_tokens is not None
        columns["lost_tokens"].append(expected.lost_tokens if known else None)
        columns["server"].append(seen.server or seen.model)
        for name in (*COUNTS, "prompt_ms"):
            columns[name].append(getattr(seen.usage, name))
    return columns


def _money(amount: float) -> str:
    return f"{amount:,.2f}" if amount >= 100 else f"{amount:.3g}"

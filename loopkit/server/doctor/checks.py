"""The table of `Server.doctor`: what a server offers and lacks for a warm cache.

`loopkit.server.doctor.probes` sends the requests. Each check turns some of their responses into one row of the table. If a check
needs a response that is missing, its state is ``unknown``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

from loopkit import engines
from loopkit.contract.neutralise import neutralise
from loopkit.encoding import encode
from loopkit.reprs import Card
from loopkit.server.doctor.probes import (
    THOUGHT_BEFORE,
    THOUGHT_IN_ROUND,
    UNUSUAL,
    USUAL,
    Counts,
    Examined,
    NoAnswer,
    ProbeResults,
    probe,
)

__all__ = ["Check", "Doctor", "State", "examine"]

State: TypeAlias = Literal["harmful", "missing", "unknown", "ok"]


class Check(NamedTuple):
    """One row of the table."""

    check: str
    """Name of the check."""
    state: State
    """``harmful``, ``missing``, ``unknown`` or ``ok``."""
    seen: str
    """What the server's responses show."""
    then: str = ""
    """What to do; empty if there is nothing to do."""


@dataclass(frozen=True, slots=True)
class Doctor:
    """Result of `Server.doctor`: a table with one row per check. Print it to see all rows.

    Parameters
    ----------
    rows : tuple of Check
        One row per check, in a fixed order.

    Examples
    --------
    >>> doctor = Doctor((Check("slots", "unknown", "HTTP 404 on /props", "Do not pin"),))
    >>> doctor
    Doctor: unknown slots
    >>> print(doctor)
    unknown  slots              HTTP 404 on /props
                                → Do not pin
    """

    rows: tuple[Check, ...]

    def __str__(self) -> str:
        lines = []
        for row in self.rows:
            lines.append(f"{row.state:<9}{row.check:<19}{row.seen}")
            if row.then:
                lines.append(f"{'':28}→ {row.then}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        names = {state: [row.check for row in self.rows if row.state == state] for state in get_args(State)}
        return Card("Doctor", [(state, " + ".join(checks)) for state, checks in names.items() if checks]).text()

    def _repr_html_(self) -> str:
        facts = [(row.check, ". ".join(filter(None, (f"{row.state}: {row.seen}", row.then)))) for row in self.rows]
        return Card("Doctor", facts).html()


def examine(server: Examined) -> Doctor:
    """Check which of a server's properties and settings help or harm prompt caching.

    Parameters
    ----------
    server : Server
        Any server. An embedded server processes the test completion in a slot that no open session uses. Any other server
        chooses a slot, and may move that slot's tokens to its host cache.

    Returns
    -------
    Doctor
        One row per check.

    Raises
    ------
    ServerRefused
        The server refuses a completion because the API key is missing or wrong.
    ServerUnreachable
        The server was closed with `Server.close`.

    Examples
    --------
    >>> from loopkit.server.opening import serve
    >>> with serve("tiny") as server:
    ...     [row.check for row in examine(server).rows if row.state == "ok"]
    ['cached counts', 'tool arguments', 'slots', 'host cache', 'memory kind', 'context per slot']
    """
    results = probe(server)
    return Doctor(
        (
            _cached_counts(results.counts, server.engine),
            _reasoning(results.rounds, results.turns),
            _arguments(results.rounds),
            _slots(results, unified=server.unified),
            _host_cache(results, server.host_cache_mib),
            _memory(results.counts, server.engine),
            _context(results, server.context_size),
        )
    )


def _cached_counts(counts: Counts | NoAnswer, engine: str | None) -> Check:
    name = "cached counts"
    if isinstance(counts, NoAnswer):
        return Check(name, "unknown", *counts)
    first, second = (usage.cached_tokens for usage in counts)
    if first is None and second is None:
        flags = " or ".join(
            f"{each.cached_tokens_flag} ({each.name})"
            for each in engines.ENGINES
            if each.cached_tokens_flag is not None and (engine is None or engines.find(engine) is each)
        )
        then = f"Start the server with {flags}" if flags else "Compare the times to the first token instead"
        return Check(name, "missing", "the server does not report cached tokens, so losses cannot be seen", then)
    seen = f"the same prompt twice: {_number(first)}, then {_number(second)} of {_number(counts[1].prompt_tokens)} tokens cached"
    if second:
        return Check(name, "ok", seen)
    then = (
        "Hosted providers cache prompts of about 1,024 tokens and more. "
        "On your own server, check that prompt caching is enabled and that no other client is connected"
    )
    return Check(name, "unknown", seen, then)


def _number(count: int | None) -> str:
    return "not reported" if count is None else f"{count:,}"


def _reasoning(rounds: str | NoAnswer, turns: str | NoAnswer) -> Check:
    name = "reasoning kept"
    if isinstance(turns, NoAnswer):
        return Check(name, "unknown", *turns)
    if THOUGHT_BEFORE in turns:
        return Check(name, "ok", "the template keeps the reasoning of earlier turns")
    if isinstance(rounds, str) and THOUGHT_IN_ROUND in rounds:
        seen = "the template drops reasoning at the next user message; the whole previous turn is processed again"
        then = "Pass the template's switch in chat_template_kwargs, for example preserve_thinking: true"
        return Check(name, "harmful", seen, then)
    seen = "the template drops reasoning; a model that reasons loses the cache of its answers, others lose nothing"
    return Check(name, "missing", seen, "For a model that reasons, use a template that keeps it")


def _arguments(rounds: str | NoAnswer) -> Check:
    name = "tool arguments"
    if isinstance(rounds, NoAnswer):
        return Check(name, "unknown", *rounds)
    if not re.search("zqb.*zqa|zqa.*zqb", rounds, re.DOTALL):
        return Check(
            name, "missing", "the template leaves out tool calls", "Start the server with a template that supports tools"
        )
    if _contains(USUAL, rounds):
        seen = "rendered as the model wrote them"
        if not _contains(UNUSUAL, rounds):
            seen = f"serialised again, which changes unusual spellings ({_rendered('zqc', rounds)} for {UNUSUAL})"
        return Check(name, "ok", seen)
    rendered = _rendered("zqa", rounds)
    if rendered is None:
        return Check(name, "unknown", "rendered in a format of the template, not as JSON")
    then = "Use a template that writes arguments as the model does. Each call loses the cache of everything after it"
    return Check(name, "harmful", f"{USUAL} is rendered as {rendered}", then)


def _contains(arguments: str, prompt: str) -> bool:
    # The template may write the arguments as an object, or inside a JSON string.
    return arguments in prompt or encode(arguments).decode()[1:-1] in prompt


def _rendered(key: str, prompt: str) -> str | None:
    match = re.search(rf"\{{[^{{}}]{{0,80}}{key}[^{{}}]{{0,80}}\}}", prompt)
    return None if match is None else neutralise(match.group())


def _slots(results: ProbeResults, *, unified: bool | None) -> Check:
    name, props, models = "slots", results.props, results.models
    if isinstance(props, NoAnswer):
        return Check(name, "unknown", *props)
    count, size = props.total_slots, props.context_size
    if count is None:
        return Check(name, "unknown", "the server does not report their number", "Do not pin sessions (id_slot)")
    if count == 1:
        return Check(name, "ok", "1: conversations use it in turn")
    then = "Do not pin sessions (id_slot): two that alternate would lose their whole cache. Or start it with an explicit -np"
    if results.cleared or unified:
        return Check(name, "harmful", f"{count} that share one KV buffer: each is emptied when another is used", then)
    if results.cleared is False or unified is False:
        return Check(name, "ok", f"{count}, each with its own KV buffer")
    trained = None
    if not isinstance(models, NoAnswer):
        trained = next((model.number("n_ctx_train") for model in models if model.meta), None)
    if size is not None and size == trained:
        seen = f"{count}, each with the model's whole context: probably automatic slots that share one KV buffer"
        return Check(name, "harmful", seen, then)
    seen = f"{count}; the server does not report whether they share one KV buffer"
    return Check(name, "unknown", seen, "Do not pin sessions (id_slot), unless the server was started with -np")


def _host_cache(results: ProbeResults, size_mib: int | None) -> Check:
    name = "host cache"
    if size_mib == 0:
        seen = "0 MiB: a conversation that loses its slot loses its cache"
        return Check(name, "missing", seen, "Set it with serve(cache_ram_mib=…)")
    if size_mib is not None:
        size = "unlimited" if size_mib < 0 else f"{size_mib:,} MiB"
        return Check(name, "ok", f"{size}, for conversations that lost their slot")
    if results.cleared:
        return Check(name, "ok", "a slot's tokens are moved there when another slot is used")
    return Check(
        name, "unknown", "the server does not report it", "On a llama-server, set it with --cache-ram (default: 8192 MiB)"
    )


def _memory(counts: Counts | NoAnswer, engine: str | None) -> Check:
    """Detect the kind of memory from the number of tokens that llama.cpp processes when it gets the same prompt again.

    Dense memory reuses all tokens but the last. Other kinds continue at the newest checkpoint, and process the tokens after it.
    """
    name = "memory kind"
    if isinstance(counts, NoAnswer):
        return Check(name, "unknown", *counts)
    second = counts[1]
    if not engines.find(engine).has_slots or second.read_tokens is None:
        return Check(name, "unknown", "the server does not report it")
    seen = f"of {second.prompt_tokens:,} tokens just processed, {second.read_tokens:,} had to be processed again"
    if second.read_tokens == 1:
        return Check(name, "ok", f"dense, or a sliding window that is kept whole or longer than the prompt: {seen}")
    if second.read_tokens == 4:
        then = "A session in order loses nothing. An edit or a fork goes back to a checkpoint, often 500 tokens or more"
        return Check(name, "ok", f"hybrid or recurrent: {seen}", then)
    if second.read_tokens == 5:
        then = "A restored slot is processed again in full. If memory allows, use --swa-full, or serve(swa_full=True)"
        return Check(name, "harmful", f"sliding window: {seen}", then)
    return Check(name, "unknown", seen)


def _context(results: ProbeResults, known: int | None) -> Check:
    name = "context per slot"
    size = known if isinstance(results.props, NoAnswer) else results.props.context_size
    if size is None:
        return Check(name, "unknown", "the server does not report it", "A full context shows only when a request is refused")
    return Check(name, "ok", f"{size:,} tokens")

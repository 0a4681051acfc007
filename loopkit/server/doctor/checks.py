"""What a server offers and lacks for a warm cache, as a table of checks.

Judges what `loopkit.server.doctor.probes` brought back: questions that only read, and one tiny completion (one token, the same
bytes twice), which alone shows whether cached counts are reported and how the memory keeps a prompt. No fault but a
refused key is
fatal: what a server does not answer is a row that says ``unknown``. Knows nothing of sessions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from loopkit.contract.neutralise import neutralise
from loopkit.encoding import encode
from loopkit.reprs import Card
from loopkit.server.doctor.probes import THOUGHT_BEFORE, THOUGHT_IN_ROUND, UNUSUAL, USUAL, Counts, Findings, Prompt, Silent, ask

if TYPE_CHECKING:
    from loopkit.server.client import Server

__all__ = ["Check", "Doctor", "State", "examine"]

State: TypeAlias = Literal["harmful", "missing", "unknown", "ok"]

FLAGS = {"vllm": "--enable-prompt-tokens-details", "sglang": "--enable-cache-report"}


class Check(NamedTuple):
    """One row of the table."""

    check: str
    state: State
    seen: str
    "What was seen."
    then: str = ""
    "What to do; empty where there is nothing to do."


@dataclass(frozen=True, slots=True)
class Doctor:
    """A table of checks; `str` gives all of it as text.

    Parameters
    ----------
    rows : tuple of Check
        In a fixed order.

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


def examine(server: Server) -> Doctor:
    """Ask a server what it offers and lacks.

    Parameters
    ----------
    server : Server
        Any. On the embedded one the completion goes to a slot that no open session holds; elsewhere the server chooses, and what
        it held there goes to its host cache, if it has one.

    Returns
    -------
    Doctor
        What could not be found out is ``unknown``.

    Raises
    ------
    ServerRefused, ServerUnreachable
        When the server refuses a completion because its key is missing or wrong; when it was closed here.

    Examples
    --------
    >>> from loopkit.server.client import serve
    >>> with serve("tiny") as server:
    ...     [row.check for row in examine(server).rows if row.state == "ok"]
    ['cached counts', 'tool arguments', 'slots', 'host cache', 'memory kind', 'context per slot']
    """
    found = ask(server)
    return Doctor(
        (
            _cached_counts(found.counts, server.engine),
            _reasoning(found.rounds, found.turns),
            _arguments(found.rounds),
            _slots(found, unified=server.unified),
            _host_cache(found, server.host_cache_mib),
            _memory(found.counts, server.engine),
            _context(found, server.context_size),
        )
    )


def _cached_counts(counts: Counts | Silent, engine: str | None) -> Check:
    name = "cached counts"
    if isinstance(counts, Silent):
        return Check(name, "unknown", *counts)
    first, again = (usage.cached_tokens for usage in counts)
    if first is None and again is None:
        flags = " or ".join(f"{flag} ({of})" for of, flag in FLAGS.items() if engine in (None, of))
        then = f"Start it with {flags}" if flags else "Only the time to the first token shows something here"
        return Check(name, "missing", "not reported, so no loss can be seen", then)
    seen = f"the same prompt twice: {_said(first)}, then {_said(again)} of {_said(counts[1].prompt_tokens)} tokens cached"
    if again:
        return Check(name, "ok", seen)
    then = "Hosted ones cache from about 1,024 tokens up; on your own, is prompt caching on, and nobody else there?"
    return Check(name, "unknown", seen, then)


def _said(count: int | None) -> str:
    return "not reported" if count is None else f"{count:,}"


def _reasoning(rounds: Prompt | Silent, turns: Prompt | Silent) -> Check:
    name = "reasoning kept"
    if isinstance(turns, Silent):
        return Check(name, "unknown", *turns)
    if THOUGHT_BEFORE in turns.prompt:
        return Check(name, "ok", "the template keeps the reasoning of turns before")
    if isinstance(rounds, Prompt) and THOUGHT_IN_ROUND in rounds.prompt:
        seen = "kept while tools are called, dropped at the next user message: all since the one before is read again"
        return Check(name, "harmful", seen, "Pass the template's switch in chat_template_kwargs, such as preserve_thinking: true")
    seen = "the template drops it; a model that reasons loses its answers' cache, another loses nothing"
    return Check(name, "missing", seen, "For a model that reasons: a template that keeps it")


def _arguments(rounds: Prompt | Silent) -> Check:
    name = "tool arguments"
    if isinstance(rounds, Silent):
        return Check(name, "unknown", *rounds)
    if not re.search("zqb.*zqa|zqa.*zqb", rounds.prompt, re.DOTALL):
        return Check(name, "missing", "the template leaves tool calls out", "Serve with a template that has tools")
    if _kept(USUAL, rounds.prompt):
        seen = "rendered as the model wrote them"
        if not _kept(UNUSUAL, rounds.prompt):
            seen = f"written anew, which changes unusual spellings ({_rendered('zqc', rounds.prompt)} for {UNUSUAL})"
        return Check(name, "ok", seen)
    anew = _rendered("zqa", rounds.prompt)
    if anew is None:
        return Check(name, "unknown", "rendered in a form of the template's own, not as JSON")
    then = "Use a template that writes them as the model does; each call costs what stands behind it"
    return Check(name, "harmful", f"{USUAL} is rendered as {anew}", then)


def _kept(arguments: str, prompt: str) -> bool:
    return arguments in prompt or encode(arguments).decode()[1:-1] in prompt  # as an object, or as a JSON string


def _rendered(key: str, prompt: str) -> str | None:
    found = re.search(rf"\{{[^{{}}]{{0,80}}{key}[^{{}}]{{0,80}}\}}", prompt)
    return None if found is None else neutralise(found.group())


def _slots(found: Findings, *, unified: bool | None) -> Check:
    name, props, models = "slots", found.props, found.models
    if isinstance(props, Silent):
        return Check(name, "unknown", *props)
    count, size = props.total_slots, props.default_generation_settings.n_ctx
    if count is None:
        return Check(name, "unknown", "their number is not said", "Do not pin (id_slot)")
    if count == 1:
        return Check(name, "ok", "1: conversations take turns in it")
    then = "Do not pin (id_slot): two conversations that alternate would lose everything. Or start it with an explicit -np"
    if found.cleared or unified:
        return Check(name, "harmful", f"{count}, and each is emptied when another is used: automatic, with one KV buffer", then)
    if found.cleared is False or unified is False:
        return Check(name, "ok", f"{count}, each with a KV buffer of its own")
    trained = None if isinstance(models, Silent) else next((each.meta.n_ctx_train for each in models.data if each.meta), None)
    if size is not None and size == trained:
        seen = f"{count}, each with the model's whole context: it looks like automatic slots with one KV buffer"
        return Check(name, "harmful", seen, then)
    seen = f"{count}; whether they share one KV buffer is not said"
    return Check(name, "unknown", seen, "Do not pin (id_slot), unless it was started with -np")


def _host_cache(found: Findings, known: int | None) -> Check:
    name = "host cache"
    if known == 0:
        return Check(name, "missing", "0 MiB: who loses the slot loses the cache", "serve(cache_ram_mib=…) sets it")
    if known is not None:
        size = "unlimited" if known < 0 else f"{known:,} MiB"
        return Check(name, "ok", f"{size}, for conversations that have lost their slot")
    if found.cleared:
        return Check(name, "ok", "a slot's tokens go there when another is used")
    return Check(name, "unknown", "the server does not say", "On a llama-server --cache-ram sets it (8192 MiB by default)")


def _memory(counts: Counts | Silent, engine: str | None) -> Check:
    """By what llama.cpp reads of a prompt that it has just read: the rest after its newest checkpoint; dense memory has none."""
    name = "memory kind"
    if isinstance(counts, Silent):
        return Check(name, "unknown", *counts)
    again = counts[1]
    if engine != "llama.cpp" or again.read_tokens is None:
        return Check(name, "unknown", "the server does not say")
    seen = f"of {again.prompt_tokens:,} tokens just read, {again.read_tokens:,} had to be read again"
    if again.read_tokens == 1:
        return Check(name, "ok", f"dense, or a window kept whole or shorter than that: {seen}")
    if again.read_tokens == 4:
        then = "A kept contract loses nothing; an edit or a fork goes back to a checkpoint, often 500 tokens and more"
        return Check(name, "ok", f"hybrid or recurrent: {seen}", then)
    if again.read_tokens == 5:
        then = "A slot saved and restored is read again whole; start it with --swa-full (serve: swa_full=True) if memory allows"
        return Check(name, "harmful", f"sliding window: {seen}", then)
    return Check(name, "unknown", seen)


def _context(found: Findings, known: int | None) -> Check:
    name = "context per slot"
    size = known if isinstance(found.props, Silent) else found.props.default_generation_settings.n_ctx
    if size is None:
        return Check(name, "unknown", "the server does not say", "That it is full shows only when a request is refused")
    return Check(name, "ok", f"{size:,} tokens")

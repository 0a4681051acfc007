"""The causes of cache losses in words: why tokens were lost, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["CAUSES", "Cause", "advice", "because"]


class Cause(NamedTuple):
    """The text for one cause of a cache loss: an explanation and advice."""

    because: str
    "Why tokens were lost, as a clause that completes a sentence such as ``1,200 tokens lost …``."
    advice: str
    "What to do about the cause, in one or two sentences."


_NO_LOSS = "This is not a loss."

CAUSES: Mapping[str, Cause] = {
    "system_changed": Cause(
        "because the system prompt changed",
        "Keep the system prompt fixed within a session. Put changing facts, such as the time, into the newest message.",
    ),
    "tools_changed": Cause(
        "because the tool definitions changed",
        "Send the same tools in the same order and with the same text in every request.",
    ),
    "history_changed": Cause(
        "because earlier messages changed",
        "Append messages only. If old ones must go, drop many at once and rarely.",
    ),
    "options_changed": Cause(
        "because request options that are part of the prompt changed",
        "Keep options such as the response format and the tool choice fixed within a session.",
    ),
    "model_changed": Cause(
        "because the model changed",
        "Use one model within a session. Each model has a cache of its own.",
    ),
    "template_rewrote": Cause(
        "because the chat template rendered earlier messages differently",
        "Use a template that renders earlier messages the same in every turn. `lk.cache.template_matrix(server)` compares turns.",
    ),
    "retokenised": Cause(
        "because the same text was split into other tokens",
        "Send a completion back exactly as it was generated. The rest depends on the template and the tokenizer.",
    ),
    "slot_taken": Cause(
        "because another request used the slot in between",
        "Start the server with one slot per concurrent session, or pin each session to a slot of its own.",
    ),
    "host_cache_rule": Cause(
        "because the rules of the host cache kept the prompt out of the slot",
        "Give each session a slot of its own, so that it does not depend on the host cache.",
    ),
    "pinned_empty_slot": Cause(
        "because the pinned slot was empty, and then the host cache is not searched",
        "Do not pin slots, or start llama-server with an explicit `-np` or with `--no-cache-idle-slots`.",
    ),
    "no_checkpoint": Cause(
        "because the model's memory has no checkpoint at this position",
        "Models with sliding-window or recurrent memory can only continue from checkpoints. Avoid changes to earlier messages.",
    ),
    "restored_without_checkpoints": Cause(
        "because the slot was restored from a file that contains no checkpoints",
        "Expect the prompt to be processed once after a slot of such a model is restored.",
    ),
    "context_shifted": Cause(
        "because the server shifted the context when it was full",
        "Start a new epoch before the context is full, or use a larger context. Turn off context shifting.",
    ),
    "server_truncated": Cause(
        "because the server cut the prompt",
        "Use a larger context, or send a shorter prompt.",
    ),
    "evicted": Cause(
        "because the server evicted the prompt from its cache",
        "Give the cache more memory, or run fewer sessions at the same time.",
    ),
    "server_restarted": Cause(
        "because the server was restarted",
        "Keep the server running during a session. On llama-server, `park()` saves the slot before a restart.",
    ),
    "server_changed": Cause(
        "because another server, or another build of it, answered",
        "Send all requests of a session to the same server.",
    ),
    "expired": Cause(
        "because the provider's cache entry expired",
        "Send requests at shorter intervals, or choose a longer time to live if the provider offers one.",
    ),
    "generation_not_cached": Cause(
        "because the server caches prompts but not completions",
        "Nothing in the request can change this. Some servers have an option for it.",
    ),
    "lookback": Cause(
        "because the last cache breakpoint was too far back for the provider to find",
        "Set a breakpoint at least every 20 content blocks.",
    ),
    "concurrent_first_write": Cause(
        "because several requests with the same prefix were sent before the first was cached",
        "Send one request first, and the others after its response has begun.",
    ),
    "routed_elsewhere": Cause(
        "because the request was probably sent to a machine that did not have the prefix",
        "Send a cache key such as `prompt_cache_key`, if the provider offers one.",
    ),
    "granularity": Cause("because the server caches whole blocks only", _NO_LOSS),
    "below_minimum": Cause("because the prompt is shorter than the provider's minimum for caching", _NO_LOSS),
    "last_token": Cause("because the last token of a prompt is always processed", _NO_LOSS),
    "first_request": Cause("because the first request of a session has nothing to reuse", _NO_LOSS),
    "epoch_started": Cause("because a new epoch has nothing to reuse", _NO_LOSS),
    "unexplained": Cause(
        "for an unknown reason",
        "`logs.evidence(row)` lists what was ruled out. Request bodies and server counters in the log help to find a cause.",
    ),
}


def because(cause: str | None) -> str:
    """Return why tokens were lost, as a clause.

    Parameters
    ----------
    cause : str or None
        A value of ``cache_loss.cause`` or ``usage.shortfall``.

    Returns
    -------
    str
        A clause that completes a sentence such as ``1,200 tokens lost …``.

    Examples
    --------
    >>> because("model_changed"), because("solar_flare"), because(None)
    ('because the model changed', 'because of `solar_flare`', 'for an unknown reason')
    """
    if cause is None:
        return CAUSES["unexplained"].because
    return CAUSES[cause].because if cause in CAUSES else f"because of `{cause}`"


def advice(cause: str | None) -> str:
    """Return what to do about a cause, in one or two sentences; empty if the cause is unknown.

    Parameters
    ----------
    cause : str or None
        A value of ``cache_loss.cause``.

    Examples
    --------
    >>> advice("server_truncated")
    'Use a larger context, or send a shorter prompt.'
    """
    return CAUSES[cause].advice if cause is not None and cause in CAUSES else ""

"""`Engine`: the facts of an engine with their defaults: how it is recognised, how many tokens it keeps, how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from loopkit.contract.records import Usage
from loopkit.engines.evidence.diagnosis import Diagnosis, FixableBy
from loopkit.engines.evidence.observation import Observation

__all__ = ["Engine", "Kept", "Retention"]


class Kept(NamedTuple):
    """How many tokens of a request an engine keeps in its cache for the next request."""

    tokens: int
    "Number of kept tokens: those of the prompt, plus those of the completion if the engine keeps completions."
    block: int
    "Size of a cache block in tokens. Only whole blocks are reused."
    exact: bool
    "True if `tokens` is exact, False if it is a lower bound."


class Retention(NamedTuple):
    """How long a provider keeps an unused prefix under one setting, in seconds."""

    kept_at_least: float | None
    "An unused prefix stays in the cache for at least this long, unless it is evicted; None if unknown."
    gone_after: float | None
    "An unused prefix is no longer in the cache after this time; None if unknown."
    counted_from: Literal["request", "response"] | None = None
    """``request``: the time starts when the last request that used the prefix starts. ``response``: it starts when the response
    to that request ends. None if unknown. Diagnoses always measure from the response, which gives the shorter time."""


class Engine:
    """An inference engine or provider: class attributes with its facts, and methods with its rules.

    Each subclass states the facts of one engine; its module names their source and date. The defaults of this class describe an
    unknown engine, for which only lower bounds of the cached tokens can be given.

    Examples
    --------
    >>> from loopkit import engines
    >>> engines.find("llama.cpp").block, engines.find("llama.cpp").exact
    (1, True)
    >>> engines.find("a new engine").exact
    False
    """

    name: ClassVar[str | None] = None
    "Name in logs and frames; None for an unknown engine."
    hosted: ClassVar[bool] = False
    "True for a provider's API, False for a server that one runs oneself."

    block: ClassVar[int] = 128
    "Size of a cache block in tokens. Only whole blocks are reused. The default is the largest block in common use."
    exact: ClassVar[bool] = False
    "True if loopkit can compute exactly how many tokens an unchanged prefix finds in the cache."
    minimum: ClassVar[int] = 0
    "Smallest number of tokens of a prefix that is cached; shorter prefixes are not."
    minimums: ClassVar[Mapping[str, int]] = {}
    "Documented minimum of each model in tokens, if models differ. Expected tokens do not take it into account yet."
    processes_last_token: ClassVar[bool] = False
    "True if the last prompt token is always processed. Then at most ``prompt_tokens - 1`` tokens can be cached."
    keeps_completions: ClassVar[bool | None] = None
    "True if the tokens of a completion can be reused by the next prompt; None if unknown."
    retention: ClassVar[Retention | None] = None
    "How long an unused prefix is kept by default; None if no time limit is known."
    retentions: ClassVar[Mapping[str, Retention]] = {}
    "How long an unused prefix is kept, by the setting that a request can choose, such as ``1h``."

    has_slots: ClassVar[bool] = False
    "True if the server has llama.cpp's slots, including their counters and the endpoints that save, restore and erase a slot."
    prompt_tokens_from: ClassVar[Literal["apply-template", "tokenize-chat"] | None] = None
    "Endpoint that returns a chat prompt: llama.cpp's /apply-template or vLLM's /tokenize. None if there is none."
    any_model_name: ClassVar[bool] = False
    "True if the server answers requests for any model name."
    body_members: ClassVar[Mapping[str, Any]] = {}
    "Members that loopkit adds to each request body for this engine, with their values."
    cached_tokens_flag: ClassVar[str | None] = None
    "Command line flag that the server needs to report cached tokens; None if it needs none."

    owned_by: ClassVar[str | None] = None
    "Value of ``owned_by`` in the server's /v1/models, by which the engine is recognised; None if it has no fixed value."
    version_path: ClassVar[str | None] = None
    "Path of the endpoint that returns the version, from the server's root; None if there is none."
    header_prefix: ClassVar[str | None] = None
    "Prefix of response header names that only this provider sends, such as ``openai-``; None if there is none."
    server_header: ClassVar[str | None] = None
    "Prefix of the value of the ``Server`` response header; None if there is none."
    log_names: ClassVar[frozenset[str]] = frozenset()
    "Names of this engine in the logs of other tools, in lower case."
    verdicts: ClassVar[Mapping[str, tuple[str, FixableBy]]] = {}
    "Reasons for a cache miss that the engine itself reports, each with loopkit's name of the cause and who can fix it."

    def kept(self, previous: Usage, block: int | None = None) -> Kept:
        """Return how many tokens of a request the engine keeps for the next one.

        Parameters
        ----------
        previous : Usage
            Usage of the request. Its ``prompt_tokens`` must be known.
        block : int, optional
            Block size in tokens, if it is known or estimated. It replaces `Engine.block`, and the result is a lower bound.
        """
        prompt = previous.prompt_tokens or 0
        exact = self.exact and block is None and previous.completion_tokens is not None
        tokens = prompt + max(0, (previous.completion_tokens or 0) - 1) if exact else prompt
        return Kept(tokens, self.block if block is None else block, exact)

    def cache_write_seconds(self, *, one_hour: bool = False) -> float | None:
        """Return how many seconds the provider keeps tokens that a request wrote to the cache.

        Parameters
        ----------
        one_hour : bool
            True if the request asked for a time to live of one hour.

        Returns
        -------
        float or None
            Seconds. None if the provider does not report cache writes with a time to live.
        """
        return None

    def wrote_response(self, response: Mapping[str, Any]) -> bool:
        """Return True if the members of a response show that this engine wrote it.

        Parameters
        ----------
        response : mapping
            The decoded response. For a streamed response, the members of all its events, merged.
        """
        return False

    def diagnose(
        self, previous: Observation, now: Observation, between: Sequence[Observation], reusable: int
    ) -> Diagnosis | None:
        """Return why tokens that were sent unchanged were not found in the cache.

        Parameters
        ----------
        previous, now : Observation
            The previous request of the epoch, and the request that found too few tokens in the cache.
        between : sequence of Observation
            Other requests that the same server answered between the two, oldest first.
        reusable : int
            Number of leading tokens that a complete cache would have returned for `now`.

        Returns
        -------
        Diagnosis or None
            The cause with its evidence. None if no rule of the engine explains the loss.
        """
        return None

"""`Engine`: the facts of an engine with their defaults: how it is recognised, how many tokens it keeps, how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from loopkit.contract.records import Usage
from loopkit.engines.evidence.diagnosis import Diagnosis, FixableBy
from loopkit.engines.evidence.observation import Observation

__all__ = ["Engine", "Kept", "Retention"]


class Kept(NamedTuple):
    """What an engine keeps of a request for the next one."""

    tokens: int
    "Tokens of the prompt, and of the completion where the engine keeps it."
    block: int
    "Tokens are reused in whole blocks of this size."
    exact: bool
    "True if `tokens` is exact, False if it is a lower bound."


class Retention(NamedTuple):
    """How long a provider keeps an unused prefix under one setting, in seconds."""

    kept_at_least: float | None
    "The prefix is in the cache until then, unless evicted; None if unknown."
    gone_after: float | None
    "The prefix is gone after this; None if unknown."
    counted_from: Literal["request", "response"] | None = None
    """The time counts from the start of the last request that used the prefix, or from the end of its response. None if unknown.
    Diagnoses measure from the response. That gap is the shorter one, so it never overstates how long a prefix was unused."""


class Engine:
    """An inference engine or provider. The defaults describe an unknown one: lower bounds only.

    Each subclass states the facts of one engine, with their source and date.

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
    "Tokens are reused in whole blocks of this size. The default is the widest block in common use."
    exact: ClassVar[bool] = False
    "True if the tokens that an unbroken prefix finds in the cache are known exactly."
    minimum: ClassVar[int] = 0
    "Prefixes with fewer tokens are not cached."
    minimums: ClassVar[Mapping[str, int]] = {}
    "Documented minimum per model, in tokens, where one number does not fit all models. Expectations do not use it yet."
    processes_last_token: ClassVar[bool] = False
    "True if at least the last prompt token is always processed, so that a whole prompt is never reported as cached."
    keeps_completions: ClassVar[bool | None] = None
    "True if the tokens of a completion can be reused by the next prompt; None if unknown."
    retention: ClassVar[Retention | None] = None
    "How long an unused prefix is kept by default; None if no time limit is known."
    retentions: ClassVar[Mapping[str, Retention]] = {}
    "How long an unused prefix is kept under each setting that a request can choose."

    has_slots: ClassVar[bool] = False
    "True for llama.cpp's slots, with their counters, their saved files and the endpoint that erases them."
    prompt_tokens_from: ClassVar[Literal["apply-template", "tokenize-chat"] | None] = None
    "How the server shows the tokens of a chat prompt: rendered by /apply-template, or by vLLM's /tokenize. None: not at all."
    any_model_name: ClassVar[bool] = False
    "True if the server answers requests for any model name."
    body_members: ClassVar[Mapping[str, Any]] = {}
    "Members that loopkit adds to each request body."
    cached_tokens_flag: ClassVar[str | None] = None
    "The command line flag that makes the server report cached tokens, if it needs one."

    owned_by: ClassVar[str | None] = None
    "Value of ``owned_by`` in the server's /v1/models."
    version_path: ClassVar[str | None] = None
    "Endpoint that tells the version, below the server's root."
    header_prefix: ClassVar[str | None] = None
    "Beginning of response header names that only this provider sends."
    server_header: ClassVar[str | None] = None
    "Beginning of the ``Server`` response header."
    log_names: ClassVar[frozenset[str]] = frozenset()
    "Names of this engine in the logs of other tools, in lower case."
    verdicts: ClassVar[Mapping[str, tuple[str, FixableBy]]] = {}
    "The engine's own words for cache misses, with the cause and who can fix it."

    def kept(self, previous: Usage, block: int | None = None) -> Kept:
        """Return what the engine keeps of a request.

        Parameters
        ----------
        previous : Usage
            Usage of that request; its prompt tokens are known.
        block : int, optional
            Block size if it is known or estimated. It replaces the engine's own and makes the result a lower bound.
        """
        prompt = previous.prompt_tokens or 0
        exact = self.exact and block is None and previous.completion_tokens is not None
        tokens = prompt + max(0, (previous.completion_tokens or 0) - 1) if exact else prompt
        return Kept(tokens, self.block if block is None else block, exact)

    def cache_write_seconds(self, *, one_hour: bool = False) -> float | None:
        """Return how long the provider keeps tokens that a request wrote to the cache.

        Parameters
        ----------
        one_hour : bool
            True if the request paid for an hour.

        Returns
        -------
        float or None
            Seconds. None if the provider has no writes that are paid by time.
        """
        return None

    def wrote_response(self, response: Mapping[str, Any]) -> bool:
        """Return True if only this engine writes such a response.

        Parameters
        ----------
        response : mapping
            The members of the response, merged over its stream events.
        """
        return False

    def diagnose(
        self, previous: Observation, now: Observation, between: Sequence[Observation], reusable: int
    ) -> Diagnosis | None:
        """Diagnose tokens that were sent unchanged and still not found in the cache.

        Parameters
        ----------
        previous, now : Observation
            The previous request of the epoch, and the one that lost its cache.
        between : sequence of Observation
            Other requests to the same server in between, oldest first.
        reusable : int
            Tokens that the two requests share.

        Returns
        -------
        Diagnosis or None
            None if no rule of the engine explains the loss.
        """
        return None

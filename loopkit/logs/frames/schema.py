"""The columns of every frame: name, kind, unit and meaning.

Columns are declared only here. Dtypes, the packing of records, Parquet files and docstrings follow from these tables.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

__all__ = ["CONTENT", "FRAMES", "SOURCES", "Column", "Kind", "document_columns"]

F = TypeVar("F", bound=Callable[..., Any])

Kind: TypeAlias = Literal["count", "real", "flag", "time", "text", "name", "hash", "json", "source"]
"""Kind of a column's values. A ``name`` is a text with few distinct values; ``json`` is a text that contains JSON."""

SOURCES = (
    *("loopkit", "replay", "recorded", "claude_code", "pi", "codex", "inspect"),
    *("openai", "otel", "litellm", "llama_server", "mooncake", "bailian"),
)
DTYPES: Mapping[Kind, str] = {
    "count": "Int64",
    "real": "Float64",
    "flag": "boolean",
    "time": "datetime64[us, UTC]",
    "source": "category",
    **dict.fromkeys(("text", "name", "hash", "json"), "string"),
}
"The pandas dtype of each kind, as pandas prints it."


class Column(NamedTuple):
    """A column of a frame."""

    name: str
    kind: Kind
    unit: str | None
    doc: str

    @property
    def dtype(self) -> str:
        """Name of the pandas dtype."""
        return DTYPES[self.kind]


SESSION = Column("session", "text", None, "id of the session or replay")
EPOCH = Column("epoch", "count", None, "number of the epoch within the session, from 0")
TURN = Column("turn", "count", None, "number of the turn within the epoch, from 1; missing in a replay, which has no turns")
REQUEST = Column("request", "count", None, "number of the request within the epoch, from 1")
STARTED = Column("started", "time", "UTC", "timestamp of the first record")
ENDED = Column("ended", "time", "UTC", "timestamp of the last record")
MODEL = Column("model", "text", None, "model name reported by the server")
TURNS = Column("turns", "count", "turns", "number of turns, including one continued from the epoch before; missing in a replay")
REQUESTS = Column("requests", "count", "requests", "number of completed requests")
FINISH = Column("finish_reason", "name", None, "why the model stopped, as reported by the server")

PROMPT = Column("prompt_tokens", "count", "tokens", "length of the prompt, including cached tokens")
CACHED = Column("cached_tokens", "count", "tokens", "prompt tokens taken from the server's cache; missing if not reported")
READ = Column("read_tokens", "count", "tokens", "prompt tokens that the server processed: prompt_tokens minus cached_tokens")
EXPECTED = Column("expected_tokens", "count", "tokens", "tokens that should be cached, given the previous request")
EXACT = Column("expected_exact", "flag", None, "True if expected_tokens is exact, False if it is a lower bound")
REUSABLE = Column("reusable_tokens", "count", "tokens", "longest token prefix shared with the previous prompt and its completion")
LOST = Column("lost_tokens", "count", "tokens", "expected tokens that were not cached; 0 if nothing was lost, missing if unknown")
COMPLETION = Column("completion_tokens", "count", "tokens", "length of the completion, including reasoning")
LOSSES = Column("losses", "count", "losses", "number of rows in cache_loss; missing if no request reports its cached tokens")
REUSE = Column("reuse", "real", "share", "cached_tokens divided by prompt_tokens, over the requests that report both")

FRAMES: Mapping[str, tuple[Column, ...]] = {
    "sessions": (
        SESSION,
        Column("source", "source", None, "program that wrote the log"),
        Column("parent", "text", None, "session that this one was forked, resumed or spawned from, or that it replays"),
        Column("variant", "text", None, "what a replay changed on purpose; missing if nothing"),
        Column("path", "text", None, "directory of the session, or file of the replay or foreign log"),
        STARTED,
        ENDED,
        Column("epochs", "count", "epochs", "number of loaded epochs"),
        TURNS,
        REQUESTS,
        MODEL._replace(doc="model of the last epoch, as reported by the server"),
        Column("engine", "text", None, "server software of the last epoch"),
    ),
    "epochs": (
        SESSION,
        EPOCH,
        STARTED,
        ENDED,
        Column("end_reason", "text", None, "context_full or asked; missing if the epoch has not ended"),
        Column("baseline_sha256", "text", None, "SHA-256 of the baseline; missing in a replay"),
        Column("baseline_bytes", "count", "bytes", "size of the baseline file"),
        Column("slot", "count", None, "llama-server slot that the epoch is pinned to"),
        TURNS,
        REQUESTS,
        PROMPT,
        CACHED,
        READ,
        COMPLETION,
        LOSSES,
        LOST,
        REUSE,
    ),
    "turns": (
        SESSION,
        EPOCH,
        TURN,
        Column(
            "time",
            "time",
            "UTC",
            "timestamp of the user message, or start of the epoch for a continued turn",
        ),
        REQUESTS,
        Column("tool_calls", "count", "calls", "number of tool calls with a result"),
        PROMPT,
        CACHED,
        READ,
        COMPLETION,
        LOSSES,
        LOST,
        REUSE,
        FINISH._replace(doc="why the model stopped in the last request, as reported by the server"),
        Column(
            "elapsed_ms",
            "real",
            "ms",
            "time from the user message to the last record; missing if the clock was set back",
        ),
    ),
    "usage": (
        SESSION,
        EPOCH,
        TURN,
        REQUEST,
        Column("time", "time", "UTC", "timestamp of the usage record"),
        MODEL,
        PROMPT,
        CACHED,
        Column("cache_write_tokens", "count", "tokens", "prompt tokens written to the cache, where the provider bills for it"),
        READ,
        EXPECTED,
        EXACT,
        REUSABLE,
        LOST,
        Column("shortfall", "name", None, "why fewer tokens were cached than expected, if this is not a loss"),
        COMPLETION,
        Column("reasoning_tokens", "count", "tokens", "reasoning tokens within the completion"),
        REUSE._replace(doc="cached_tokens divided by prompt_tokens"),
        Column("ttft_ms", "real", "ms", "time from sending the request to the first token, measured by the client"),
        Column("prompt_ms", "real", "ms", "time to process the prompt, measured by the server"),
        Column("predicted_ms", "real", "ms", "time to generate the completion, measured by the server"),
        FINISH,
        Column("request_bytes", "count", "bytes", "size of the request body"),
        Column(
            "new_bytes",
            "count",
            "bytes",
            "growth of the body since the previous request of the epoch",
        ),
        Column("request_sha256", "hash", None, "SHA-256 of the request body"),
    ),
    "cache_loss": (
        SESSION,
        EPOCH,
        TURN,
        REQUEST,
        Column("time", "time", "UTC", "timestamp of the cache loss record"),
        EXPECTED,
        EXACT,
        REUSABLE,
        CACHED,
        LOST,
        Column("lost_ms", "real", "ms", "estimated time to process the lost tokens: prompt_ms × lost_tokens ÷ read_tokens"),
        Column("cause", "name", None, "why the tokens were lost, such as system_changed"),
        Column("certainty", "name", None, "confirmed, suspected or unexplained"),
        Column("fixable_by", "name", None, "client, template, server, provider or nobody"),
        Column("location", "name", None, "member of the request, message or event that the evidence points at"),
        Column("evidence", "json", None, "evidence for the cause, as JSON; Logs.evidence(row) returns it as a dict"),
    ),
    "messages": (
        SESSION,
        EPOCH,
        TURN._replace(doc="number of the turn, from 1; missing for the system message and for carried messages"),
        Column("position", "count", None, "position among the messages of the epoch, from 0"),
        Column("role", "text", None, "system, user, assistant or tool"),
        Column("bytes", "count", "bytes", "size of the message as sent; in a foreign log, size of its text"),
        Column("sha256", "text", None, "SHA-256 of these bytes"),
        Column("tool", "text", None, "name of the tool that returned this result"),
        Column("truncated", "flag", None, "True if the tool result was cut before it was logged"),
        Column(
            "neutralised",
            "count",
            "tags",
            "number of control tags turned into plain text; missing where none can be",
        ),
    ),
    "problems": (
        Column("path", "text", None, "file or directory"),
        Column("line", "count", None, "number of the line, from 1; missing if the problem concerns the whole file"),
        Column("offset", "count", "bytes", "byte offset in the file"),
        Column(
            "kind",
            "text",
            None,
            "torn, unreadable, not_a_log, left_out, baseline, impossible_reuse, or a kind of the adapter",
        ),
        Column("why", "text", None, "what is wrong"),
        Column("affected", "count", "lines", "number of damaged lines, or of entries left out"),
    ),
}
CONTENT = Column("content", "text", None, "text of the message, missing if it has none; only with load(…, content=True)")
"The extra column of ``messages``."

COMPUTED = {
    "usage": ("session", "epoch", "turn", "model", "read_tokens", "lost_tokens", "reuse", "new_bytes"),
    "cache_loss": ("session", "epoch", "turn", "lost_ms"),
    "messages": ("session", "epoch"),
}
"Columns that are computed and not read from a record, by frame."


def recorded_kinds(frame: str, *more: Column) -> dict[str, Kind]:
    """Return the kind of each column whose values come straight from records, by column name.

    Examples
    --------
    >>> recorded_kinds("messages")["bytes"]
    'count'
    """
    return {column.name: column.kind for column in (*FRAMES[frame], *more) if column.name not in COMPUTED[frame]}


def document_columns(function: F) -> F:
    """Append a list of a frame's columns to the docstring of the property that returns it. The property has the frame's name.

    Examples
    --------
    >>> @document_columns
    ... def problems(): "One row per problem."
    >>> print(problems.__doc__.splitlines()[4])
    - ``path`` (string): file or directory
    """
    every = FRAMES[function.__name__] + ((CONTENT,) if function.__name__ == "messages" else ())
    rows = []
    for column in every:
        unit = "" if column.unit is None else f", {column.unit}"
        rows.append(f"- ``{column.name}`` ({column.dtype}{unit}): {column.doc}")
    if function.__doc__ is not None:  # no docstrings under python -OO
        summary, _, rest = inspect.cleandoc(function.__doc__).partition("\n\n")
        function.__doc__ = "\n".join([summary, "", "Columns:", "", *rows, *(["", rest] if rest else [])])
    return function

"""The frames' columns: name, dtype, unit and what each means, in one place.

A frame has all its columns with these dtypes, always: of an empty log, of one row, of a million. Counts are nullable ``Int64``,
missing is ``<NA>`` and never 0, times are microseconds in UTC. Knows nothing of files or of how a value is come by.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from loopkit.errors import InvalidConfig

__all__ = ["CONTENT", "FRAMES", "SOURCES", "Column", "array", "build", "columns", "dtypes", "empty"]

SOURCES = [
    *("loopkit", "replay", "recorded", "claude_code", "pi", "codex", "inspect"),
    *("openai", "otel", "litellm", "llama_server", "mooncake", "bailian"),
]

TIME = pd.DatetimeTZDtype("us", "UTC")
STRING = pd.StringDtype()
COUNT = pd.Int64Dtype()
REAL = pd.Float64Dtype()
FLAG = pd.BooleanDtype()
SOURCE = pd.CategoricalDtype(SOURCES)


class Column(NamedTuple):
    """One column of a frame."""

    name: str
    dtype: Any
    unit: str | None
    doc: str


SESSION = Column("session", STRING, None, "id of the session, or of the replay")
EPOCH = Column("epoch", COUNT, None, "number of the epoch within the session, from 0")
TURN = Column("turn", COUNT, None, "number of the turn within the epoch, from 1; <NA> in a replay, which has no turns")
REQUEST = Column("request", COUNT, None, "number of the request within the epoch, from 1")
STARTED = Column("started", TIME, "UTC", "time of the first record")
ENDED = Column("ended", TIME, "UTC", "time of the last record")
MODEL = Column("model", STRING, None, "model, as the server named it")
TURNS = Column("turns", COUNT, "turns", "turns begun or taken up; <NA> in a replay")
REQUESTS = Column("requests", COUNT, "requests", "completed requests")
FINISH = Column("finish_reason", STRING, None, "why the model stopped, as the server said; of a turn: of its last request")

PROMPT = Column("prompt_tokens", COUNT, "tokens", "the whole prompt, cached tokens included")
CACHED = Column("cached_tokens", COUNT, "tokens", "of these, taken from the server's cache; <NA> where it did not say")
READ = Column("read_tokens", COUNT, "tokens", "prompt less cached")
EXPECTED = Column("expected_tokens", COUNT, "tokens", "cached tokens that a kept contract gives")
EXACT = Column("expected_exact", FLAG, None, "whether expected_tokens is a count, or only a bound")
REUSABLE = Column("reusable_tokens", COUNT, "tokens", "longest token prefix shared with what the server read and wrote before")
LOST = Column("lost_tokens", COUNT, "tokens", "expected and not cached; 0: nothing lost; <NA>: cannot be known")
COMPLETION = Column("completion_tokens", COUNT, "tokens", "written, reasoning included")
REUSE = Column("reuse", REAL, "share", "cached by prompt tokens, of the requests where both are known")

FRAMES: Mapping[str, tuple[Column, ...]] = {
    "sessions": (
        SESSION,
        Column("source", SOURCE, None, "what wrote the log"),
        Column("parent", STRING, None, "session that this one was forked, resumed or spawned from, or is a replay of"),
        Column("variant", STRING, None, "what a replay changed on purpose; <NA>: nothing"),
        Column("path", STRING, None, "directory of the session, or file of the replay or foreign log"),
        STARTED,
        ENDED,
        Column("epochs", COUNT, "epochs", "epochs loaded"),
        TURNS,
        REQUESTS,
        MODEL._replace(doc="model of the last epoch"),
        Column("engine", STRING, None, "server software of the last epoch"),
    ),
    "epochs": (
        SESSION,
        EPOCH,
        STARTED,
        ENDED,
        Column("end_reason", STRING, None, "context_full or asked; <NA>: not ended"),
        Column("baseline_sha256", STRING, None, "identity of the fixed prefix; <NA> in a replay"),
        Column("baseline_bytes", COUNT, "bytes", "size of the baseline's file"),
        Column("slot", COUNT, None, "llama-server slot that the epoch is pinned to"),
        TURNS,
        REQUESTS,
        PROMPT,
        CACHED,
        READ,
        COMPLETION,
        Column("losses", COUNT, "losses", "rows of cache_loss; <NA>: no request says what was lost"),
        LOST,
        REUSE,
    ),
    "turns": (
        SESSION,
        EPOCH,
        TURN,
        Column("time", TIME, "UTC", "when the user asked; of a turn that an epoch takes up: the epoch's start"),
        REQUESTS,
        Column("tool_calls", COUNT, "calls", "tool calls answered"),
        PROMPT,
        CACHED,
        READ,
        COMPLETION,
        Column("losses", COUNT, "losses", "rows of cache_loss; <NA>: no request says what was lost"),
        LOST,
        REUSE,
        FINISH,
        Column("elapsed_ms", REAL, "ms", "from the turn's time to its last record; <NA> where a clock was set back between"),
    ),
    "usage": (
        SESSION,
        EPOCH,
        TURN,
        REQUEST,
        Column("time", TIME, "UTC", "when the request's usage was written"),
        MODEL,
        PROMPT,
        CACHED,
        Column("cache_write_tokens", COUNT, "tokens", "written to the cache at a price (hosted engines)"),
        READ,
        EXPECTED,
        EXACT,
        REUSABLE,
        LOST,
        Column("shortfall", STRING, None, "why fewer than expected were cached where that is nobody's fault"),
        COMPLETION,
        Column("reasoning_tokens", COUNT, "tokens", "of the completion, reasoning"),
        REUSE._replace(doc="cached by prompt tokens"),
        Column("ttft_ms", REAL, "ms", "from sending to the first token, measured here"),
        Column("prompt_ms", REAL, "ms", "reading the prompt, measured by the server"),
        Column("predicted_ms", REAL, "ms", "writing the completion, measured by the server"),
        FINISH._replace(doc="why the model stopped, as the server said"),
        Column("request_bytes", COUNT, "bytes", "size of the request's body"),
        Column("new_bytes", COUNT, "bytes", "body less the previous one of the epoch; all of it at the first"),
        Column("request_sha256", STRING, None, "SHA-256 of the body"),
    ),
    "cache_loss": (
        SESSION,
        EPOCH,
        TURN,
        REQUEST,
        Column("time", TIME, "UTC", "when the loss was written"),
        EXPECTED,
        EXACT,
        REUSABLE,
        CACHED,
        LOST,
        Column("lost_ms", REAL, "ms", "prompt_ms × lost_tokens ÷ read_tokens: time spent reading them again; an estimate"),
        Column("cause", STRING, None, "why they were lost"),
        Column("certainty", STRING, None, "confirmed, suspected or unexplained"),
        Column("fixable_by", STRING, None, "client, template, server, provider or nobody"),
        Column("location", STRING, None, "member, message or event that the evidence points at"),
        Column("evidence", STRING, None, "what can be checked, as JSON"),
    ),
    "messages": (
        SESSION,
        EPOCH,
        TURN._replace(doc="number of the turn; <NA> of the system message and of what was carried over"),
        Column("position", COUNT, None, "place among the messages of the epoch, from 0"),
        Column("role", STRING, None, "system, user, assistant or tool"),
        Column("bytes", COUNT, "bytes", "size of the message as it was sent; of a foreign log, of its text"),
        Column("sha256", STRING, None, "SHA-256 of these bytes"),
        Column("tool", STRING, None, "name of the tool that answered"),
        Column("truncated", FLAG, None, "whether the tool's answer was cut before it was logged"),
        Column("neutralised", COUNT, "tags", "control tags written as text; <NA> where nothing is neutralised"),
    ),
    "problems": (
        Column("path", STRING, None, "file or directory"),
        Column("line", COUNT, None, "number of the line, from 1; <NA> where it is about the file"),
        Column("offset", COUNT, "bytes", "byte offset in the file"),
        Column("kind", STRING, None, "torn, unreadable, not_a_log, left_out; of a foreign log also what its adapter says"),
        Column("why", STRING, None, "what is wrong"),
        Column("affected", COUNT, "lines", "lines of a damaged stretch, or entries left out"),
    ),
}
CONTENT = Column("content", STRING, None, "text of the message; <NA> where it has none")
"Of the frame of messages, where it was asked for."


def dtypes(frame: str) -> dict[str, Any]:
    """Name and dtype of a frame's columns, in order.

    Examples
    --------
    >>> list(dtypes("epochs"))[:3]
    ['session', 'epoch', 'started']
    """
    return {column.name: column.dtype for column in FRAMES[frame]}


def columns(frame: str) -> pd.DataFrame:
    """Return a description of a frame's columns.

    Parameters
    ----------
    frame : str
        Name of a frame of `Logs`, such as ``"usage"``.

    Returns
    -------
    DataFrame
        One row per column of the frame, in order: ``name``, ``dtype``, ``unit`` (missing where it has none) and ``meaning``.

    Raises
    ------
    InvalidConfig
        If there is no such frame.

    Examples
    --------
    >>> columns("usage").set_index("name").loc["ttft_ms", ["dtype", "unit"]].tolist()
    ['Float64', 'ms']
    """
    if frame not in FRAMES:
        raise InvalidConfig("frame", f"there is no frame {frame!r}", f"Use one of {', '.join(FRAMES)}")
    every = FRAMES[frame] + ((CONTENT,) if frame == "messages" else ())
    described = {
        "name": [column.name for column in every],
        "dtype": [dtype_name(column.dtype) for column in every],
        "unit": [column.unit for column in every],
        "meaning": [column.doc for column in every],
    }
    return pd.DataFrame(described, dtype=STRING)


def dtype_name(dtype: Any) -> str:
    """Return a dtype's name as documentation shows it.

    Examples
    --------
    >>> dtype_name(TIME), dtype_name(SOURCE), dtype_name(COUNT)
    ('datetime64[us, UTC]', 'category', 'Int64')
    """
    return "string" if isinstance(dtype, pd.StringDtype) else str(dtype)


def empty(frame: str) -> pd.DataFrame:
    """Make a frame without rows.

    Examples
    --------
    >>> empty("usage")["cached_tokens"].dtype
    Int64Dtype()
    >>> empty("usage").attrs["units"]["ttft_ms"]
    'ms'
    """
    return build(frame, {column.name: [] for column in FRAMES[frame]})


def build(frame: str, columns: Mapping[str, Any], more: tuple[Column, ...] = ()) -> pd.DataFrame:
    """Make a frame of its columns.

    Parameters
    ----------
    frame : str
        Its name in ``FRAMES``.
    columns : mapping
        For every column of the frame, an array or list, all of one length. Times are ``datetime64[us]`` without a zone, in UTC.
    more : tuple of Column
        Columns behind those of the schema.

    Returns
    -------
    DataFrame
        With the schema's columns, order and dtypes; ``attrs["units"]`` has the units.
    """
    wanted = FRAMES[frame] + more
    made = pd.DataFrame({column.name: array(columns[column.name], column.dtype) for column in wanted}, copy=False)
    made.attrs["units"] = {column.name: column.unit for column in wanted if column.unit is not None}
    return made


def array(values: Any, dtype: Any) -> Any:
    r"""Values as the array of a frame's column.

    Examples
    --------
    >>> array(["a\udcff.jsonl", None], STRING).tolist()
    ['a\\udcff.jsonl', <NA>]
    """
    if isinstance(values, np.ndarray) and values.dtype.kind == "S":
        return _of_one_length(values)
    if dtype == TIME:
        return pd.DatetimeIndex(np.asarray(values, dtype="datetime64[us]")).tz_localize("UTC").array
    try:
        return pd.array(values, dtype=dtype, copy=False)
    except UnicodeEncodeError:  # of the path of a file whose name is no UTF-8
        texts = [value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value for value in values]
        return pd.array(texts, dtype=dtype)


def _of_one_length(values: NDArray[np.bytes_]) -> Any:
    """Texts of ASCII, all of one length, as the array of a column; without an object a text where pandas keeps none."""
    if STRING.storage != "pyarrow":
        return pd.array(values.astype(str).astype(object), dtype=STRING)
    import pyarrow as pa  # type: ignore[import-untyped]

    ends = np.arange(values.size + 1) * values.itemsize
    texts = pa.LargeStringArray.from_buffers(values.size, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(values)))
    return pd.array(texts, dtype=STRING)

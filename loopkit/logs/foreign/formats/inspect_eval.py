"""Inspect's ``.eval`` logs: every model event of every sample, read by ``inspect_ai``, which must be installed.

If the log has the request as sent to the provider, it is encoded again and used as the body, so a cause can name the member that
differs. Otherwise, the requests of one span follow each other. Responses from Inspect's own cache are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from loopkit.contract.records import Usage
from loopkit.encoding import encode
from loopkit.errors import EncodeError, InvalidConfig, describe
from loopkit.logs.foreign.entries import Entry
from loopkit.logs.foreign.logged_exchanges import LoggedExchange, engine_name, exchange_entries
from loopkit.logs.foreign.text_source import TextLine, TextSource

__all__ = ["NAME", "entries", "recognises"]

NAME = "inspect"

ZIP = b"PK\x03\x04"
READ_OPTIONS: dict[str, Any] = {"format": "eval", "resolve_attachments": True}
"Arguments for inspect_ai: accept any file name, and put long texts, which are stored separately, back in place."


def recognises(head: bytes) -> bool:
    r"""Return True if a file with these first bytes is a log of Inspect.

    Examples
    --------
    >>> recognises(b"PK\x03\x04" + bytes(26) + b"_journal/start.json")
    True
    """
    return head.startswith(ZIP) and any(name in head for name in (b"_journal/start.json", b"header.json"))


def entries(source: TextSource, *, texts: bool) -> Iterator[Entry]:
    """Yield the entries of a log of Inspect.

    Raises
    ------
    InvalidConfig
        If inspect_ai is not installed.
    """
    return exchange_entries(source, _exchanges(source, _inspect()), texts=texts)


def _inspect() -> Any:
    try:
        import inspect_ai.log
    except ImportError:
        raise InvalidConfig(
            "inspect_ai", "it is not installed, and Inspect's logs need it", "Run: pip install inspect_ai"
        ) from None
    return inspect_ai.log


def _exchanges(source: TextSource, log: Any) -> Iterator[LoggedExchange]:
    samples = log.read_eval_log_samples(str(source.path), all_samples_required=False, **READ_OPTIONS)
    while True:
        try:
            sample = next(samples, None)
        except Exception as error:  # noqa: BLE001  # damaged archives raise many kinds of errors
            source.add_fault(TextLine(b"", 1, 0), f"inspect_ai cannot read the file: {describe(error)}")
            return
        if sample is None:
            return
        for event in sample.events:
            if event.event == "model":
                yield from _exchange(source, sample, event)


def _exchange(source: TextSource, sample: Any, event: Any) -> Iterator[LoggedExchange]:
    usage = event.output.usage
    if event.cache == "read":
        source.count_left_out("requests answered by Inspect's own cache")
        return
    if event.pending or (usage is None and (event.error or event.output.error)):
        source.count_left_out("requests without a complete response")
        return
    body = _body_of(event)
    session = f"{source.path.stem}:{sample.id}:{sample.epoch}"
    yield LoggedExchange(
        body=body,
        read_body=None if body is None else partial(_body, source.path, sample.id, sample.epoch, event.uuid),
        session=session if body is not None else f"{session}:{event.span_id}",
        key=event.uuid,
        sent=event.timestamp.isoformat(),
        facts={
            "time": None if event.completed is None else event.completed.isoformat(),
            "usage": Usage() if usage is None else _usage(usage),
            "response": event.output.response_id,
            "model": event.model.partition("/")[2] or event.model,
            "engine": engine_name(event.model.partition("/")[0]),
            "finish_reason": event.output.choices[0].stop_reason if event.output.choices else None,
        },
    )


def _usage(usage: Any) -> Usage:
    """Return the usage. Inspect's input count included cached tokens until 2025; the total shows whether it does."""
    cached, written = usage.input_tokens_cache_read, usage.input_tokens_cache_write
    includes_cached = usage.total_tokens == usage.input_tokens + usage.output_tokens and usage.input_tokens >= (cached or 0) + (
        written or 0
    )
    return Usage(
        prompt_tokens=usage.input_tokens + (0 if includes_cached else (cached or 0) + (written or 0)),
        cached_tokens=cached,
        cache_write_tokens=written,
        completion_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )


def _body_of(event: Any) -> bytes | None:
    """Return the logged request as JSON, with its members in order, or None if there is no request."""
    try:
        return encode(event.call.request) if event.call is not None and event.call.request else None
    except EncodeError:
        return None


def _body(path: Path, sample: str | int, epoch: int, uuid: str) -> bytes:
    """Read the sample again, and return the request body of the event with this id."""
    found = _inspect().read_eval_log_sample(str(path), sample, epoch, **READ_OPTIONS)
    return next(body for event in found.events if event.uuid == uuid and (body := _body_of(event)))

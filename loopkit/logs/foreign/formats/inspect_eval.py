"""Inspect's ``.eval`` logs, through ``inspect_ai`` itself, which has to be installed: every model event of every sample.

Where the provider's request was logged, that is its body (an object of the log, encoded again): causes name the member that
differs. Else the requests of one span go on from one another. What Inspect's own cache answered was no request.
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
from loopkit.logs.foreign.exchanges import PROVIDERS, Exchange, told
from loopkit.logs.foreign.text_source import Line, Source

__all__ = ["NAME", "entries", "recognises"]

NAME = "inspect"

ZIP = b"PK\x03\x04"
HOW: dict[str, Any] = {"format": "eval", "resolve_attachments": True}
"How inspect_ai is asked: whatever the file is called, and with long texts in their places."


def recognises(head: bytes) -> bool:
    r"""Whether a file that begins so is a log of Inspect.

    Examples
    --------
    >>> recognises(b"PK\x03\x04" + bytes(26) + b"_journal/start.json")
    True
    """
    return head.startswith(ZIP) and any(name in head for name in (b"_journal/start.json", b"header.json"))


def entries(source: Source, *, texts: bool) -> Iterator[Entry]:
    """What a log of Inspect says.

    Raises
    ------
    InvalidConfig
        When inspect_ai is not installed.
    """
    return told(source, _exchanges(source, _inspect()), texts=texts)


def _inspect() -> Any:
    try:
        import inspect_ai.log
    except ImportError:
        raise InvalidConfig("inspect_ai", "it is not installed, and Inspect's logs need it", "pip install inspect_ai") from None
    return inspect_ai.log


def _exchanges(source: Source, log: Any) -> Iterator[Exchange]:
    samples = log.read_eval_log_samples(str(source.path), all_samples_required=False, **HOW)
    while True:
        try:
            sample = next(samples, None)
        except Exception as error:  # noqa: BLE001  # a damaged archive makes errors of many kinds in the libraries below it
            source.fault(Line(b"", 1, 0), f"inspect_ai cannot read it: {describe(error)}")
            return
        if sample is None:
            return
        for event in sample.events:
            if event.event == "model":
                yield from _exchange(source, sample, event)


def _exchange(source: Source, sample: Any, event: Any) -> Iterator[Exchange]:
    usage = event.output.usage
    if event.cache == "read":
        source.left_out("requests that Inspect's own cache answered")
        return
    if event.pending or (usage is None and (event.error or event.output.error)):
        source.left_out("requests without a whole answer")
        return
    body = _body_of(event)
    session = f"{source.path.stem}:{sample.id}:{sample.epoch}"
    yield Exchange(
        body=body,
        read=None if body is None else partial(_body, source.path, sample.id, sample.epoch, event.uuid),
        session=session if body is not None else f"{session}:{event.span_id}",
        key=event.uuid,
        sent=event.timestamp.isoformat(),
        facts={
            "time": None if event.completed is None else event.completed.isoformat(),
            "usage": Usage() if usage is None else _counted(usage),
            "response": event.output.response_id,
            "model": event.model.partition("/")[2] or event.model,
            "engine": PROVIDERS.get(event.model.partition("/")[0]),
            "finish": event.output.choices[0].stop_reason if event.output.choices else None,
        },
    )


def _counted(usage: Any) -> Usage:
    """The counts: today's input leaves out what was cached, that of 2025 did not, and the total tells which, where it can be."""
    cached, written = usage.input_tokens_cache_read, usage.input_tokens_cache_write
    whole = usage.total_tokens == usage.input_tokens + usage.output_tokens and usage.input_tokens >= (cached or 0) + (
        written or 0
    )
    return Usage(
        prompt_tokens=usage.input_tokens + (0 if whole else (cached or 0) + (written or 0)),
        cached_tokens=cached,
        cache_write_tokens=written,
        completion_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )


def _body_of(event: Any) -> bytes | None:
    """The provider's request, encoded as the log has its members; None where it was not logged."""
    try:
        return encode(event.call.request) if event.call is not None and event.call.request else None
    except EncodeError:
        return None


def _body(path: Path, sample: str | int, epoch: int, uuid: str) -> bytes:
    """The body that was sent, out of its sample."""
    found = _inspect().read_eval_log_sample(str(path), sample, epoch, **HOW)
    return next(body for event in found.events if event.uuid == uuid and (body := _body_of(event)))

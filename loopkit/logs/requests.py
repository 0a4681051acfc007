"""The requests behind loaded logs: as prompts for `loopkit.cache`, judged for causes, and as a trace without their text.

Bodies are rebuilt one at a time, when they are asked for. Knows nothing of files but the one that it writes, and of dataframes.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from loopkit.cache.losses.diagnosis import Diagnosis
from loopkit.cache.losses.findings import Coverage, Findings, Loss, diagnose
from loopkit.cache.losses.judge import expected_of
from loopkit.cache.losses.observation import Seen
from loopkit.cache.prefixes.prompt_parts import Prompt
from loopkit.cache.prefixes.prompt_parts import parts as parts_of
from loopkit.contract.records import Usage
from loopkit.encoding import decode, encode
from loopkit.errors import BaselineError, InvalidConfig, LogError, SessionIOError, TornLog, describe, kind_of
from loopkit.logs.frames.columns import Part

__all__ = ["diagnosed", "export", "prompts"]

UNEXPLAINED = "unexplained"
DOUBTED = (UNEXPLAINED, "context_shifted", "no_checkpoint")
"Causes that a session alone names where it cannot see that another took its slot."
COUNTED = ("expected", "reusable", "cached", "lost")
SALT = 16
"Bytes that a salt has at least: with a shorter one, texts could be guessed and tried."


def prompts(parts: Iterable[Part]) -> Iterator[Prompt]:
    """What is known of each request's prompt; those of which nothing is known are left out."""
    for part in parts:
        for at, known in enumerate(() if part.requests is None else part.requests()):
            if isinstance(known, Seen):
                if known.body is not None:
                    yield Prompt(body=known.body, session=part.session, time=known.time, slot=known.slot)
                elif known.tokens is not None:
                    yield Prompt(tokens=known.tokens.tokens, session=part.session, time=known.time, slot=known.slot)
            elif known is not None:
                yield replace(known, session=part.session, time=known.time or _time(part, at))


def diagnosed(parts: Iterable[Part]) -> Findings:
    """The losses of a log with their causes; replays, which break the contract on purpose, only where nothing else is there.

    Causes are those that were found live, or when a foreign log was read. Judged again is only what nobody could explain then, or
    took for the server's memory: now the other sessions at the same server are known, too.
    """
    every = list(parts)
    judged = [part for part in every if part.source != "replay"] or every
    again = _judged_again([part for part in judged if part.source == "loopkit"])
    losses = [loss for part in judged for loss in _losses(part, again)]
    losses.sort(key=lambda loss: loss.seen.time or "")
    cached, reusable = ([part.usage[name] >= 0 for part in judged] for name in ("cached_tokens", "reusable_tokens"))
    requests = sum(map(len, cached))
    lost = sum(loss.lost_tokens for loss in losses)
    named = sum(loss.lost_tokens for loss in losses if loss.diagnosis.cause != UNEXPLAINED)
    coverage = Coverage(
        with_usage=sum(int(each.sum()) for each in cached) / requests if requests else None,
        rendered_exactly=sum(int(each.sum()) for each in reusable) / requests if requests else None,
        with_a_cause=named / lost if lost else None,
    )
    return Findings(tuple(losses), requests, coverage)


def _losses(part: Part, again: Mapping[tuple[str | None, int, int | None], Diagnosis]) -> Iterator[Loss]:
    found = part.losses
    for at, row in enumerate(found["row"].tolist()):
        seen = _of_row(part, row)
        cause, certainty, fixable_by, location, evidence = (found[name][at] for name in Diagnosis._fields)
        said = Diagnosis(cause, certainty, fixable_by, location, decode(evidence))
        if said.cause in DOUBTED:
            anew = again.get((seen.session, seen.epoch, seen.request), said)
            said = anew if anew.cause not in (said.cause, UNEXPLAINED) or said.cause == UNEXPLAINED else said
        before = at - 1 if at and found["row"][at - 1] == row - 1 else None
        same = before is not None and all(found[name][before] == found[name][at] for name in ("cause", "location"))
        expected, reusable, cached, lost = (int(found[f"{name}_tokens"][at]) for name in COUNTED)
        yield Loss(seen, expected, reusable if reusable >= 0 else None, cached, lost, said, first=not same)


def _judged_again(parts: Sequence[Part]) -> dict[tuple[str | None, int, int | None], Diagnosis]:
    """What the requests of all sessions together explain; their bodies are only read where a loss has no cause."""
    if not any(part.requests is not None and not set(DOUBTED).isdisjoint(part.losses["cause"]) for part in parts):
        return {}
    seen = sorted((each for part in parts for each in _near_losses(_seen(part))), key=lambda each: each.time or "")
    return {(loss.seen.session, loss.seen.epoch, loss.seen.request): loss.diagnosis for loss in diagnose(seen).losses}


def _seen(part: Part) -> Iterator[Seen]:
    where = f"{part.engine} {part.model}"  # no log names its server; two models have two caches in any case
    known: Iterable[Seen | Prompt | None] = [None] * len(part.usage["request"])
    if part.requests is not None:
        with suppress(TornLog, BaselineError, SessionIOError):  # then the rows still count, and the cause stays unexplained
            known = part.requests()
    for at, each in enumerate(known):
        yield replace(each if isinstance(each, Seen) else _of_row(part, at), server=where)


def _of_row(part: Part, at: int) -> Seen:
    """What the row of a request says of it."""
    return Seen(
        usage=Usage(**{name: _known(part.usage[name][at]) for name in Usage.__struct_fields__}),
        session=part.session,
        epoch=part.epoch,
        request=_known(part.usage["request"][at]),
        time=_time(part, at),
        slot=part.slot,
        engine=part.engine,
        model=part.model,
    )


def _near_losses(requests: Iterator[Seen]) -> Iterator[Seen]:
    """Keep the bodies of requests that lost and of those before them: no others are compared, and all at once are large."""
    last: Seen | None = None
    lost = False
    for now in requests:
        loses = last is not None and bool(expected_of(last, now).lost_tokens)
        if last is not None:
            yield last if lost or loses else replace(last, body=None)
        last, lost = now, loses
    if last is not None:
        yield last if lost else replace(last, body=None)


def _known(value: Any) -> Any:
    """A number of a column; None where it is missing."""
    return value.item() if value >= 0 else None


def _time(part: Part, at: int) -> str | None:
    moment = str(part.usage["time"][at])
    return None if moment == "NaT" else f"{moment}Z"


def export(parts: Sequence[Part], path: Path, salt: bytes, block: int) -> int:
    """Write a trace, as `loopkit.logs.collection.Logs.export_trace` says."""
    if not isinstance(salt, bytes):
        raise InvalidConfig("salt", f"{kind_of(salt)} is no bytes", f"Give at least {SALT} random ones")
    if len(salt) < SALT:
        raise InvalidConfig(
            "salt", f"{len(salt)} bytes are too few", f"Give at least {SALT} random ones, and keep them to yourself"
        )
    if not isinstance(block, int) or block < 1:
        raise InvalidConfig("block", f"{block!r} is no number from 1 on")
    begin = min((part.started for part in parts if str(part.started) != "NaT"), default=None)
    written = 0
    try:
        with _whole(path) as file:
            for part in parts:
                for at, known in enumerate(() if part.requests is None else part.requests()):
                    found = _blocks(known, block)
                    if found is None:
                        continue
                    unit, length, blocks = found
                    time = part.usage["time"][at]
                    row = {
                        "timestamp": None if begin is None or str(time) == "NaT" else int((time - begin).astype("int64")) // 1000,
                        "input_length": length,
                        "output_length": _known(part.usage["completion_tokens"][at]),
                        "hash_ids": _chained(blocks, salt),
                        "unit": unit,
                        "block_size": block if unit != "blocks" else None,
                        "prompt_tokens": _known(part.usage["prompt_tokens"][at]),
                        "cached_tokens": _known(part.usage["cached_tokens"][at]),
                        "session": _chained([part.session.encode("utf-8", "surrogateescape")], salt)[0],
                        "epoch": part.epoch,
                        "engine": part.engine,
                    }
                    file.write(encode(row) + b"\n")
                    written += 1
    except FileExistsError:
        raise LogError(str(path), "it exists already, and nothing is ever overwritten", "Choose another name") from None
    except OSError as error:
        raise LogError(str(path), f"cannot be written: {describe(error)}") from error
    return written


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """A new file that has its name only once all is written: a half trace would pass for one."""
    _free(path)
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with beside.open("xb") as file:
            yield file
        _free(path)  # it may have come meanwhile
        beside.rename(path)
    finally:
        beside.unlink(missing_ok=True)


def _free(path: Path) -> None:
    if os.path.lexists(path):
        raise FileExistsError(path)


def _blocks(known: Seen | Prompt | None, block: int) -> tuple[str, int, list[bytes]] | None:
    """Unit and length of a prompt, and its blocks; None where it is not known."""
    if isinstance(known, Seen):
        if known.tokens is not None:
            known = Prompt(tokens=known.tokens.tokens)
        else:
            known = None if known.body is None else Prompt(body=known.body)
    if known is None:
        return None
    if known.blocks is not None:
        return "blocks", len(known.blocks), [str(each).encode() for each in known.blocks]
    made = parts_of(known, {}, {})
    whole = b"".join(made[at] for at in range(len(made)))
    size = block * 8 if made.unit == "tokens" else block
    return made.unit, len(whole) * block // size, [whole[at : at + size] for at in range(0, len(whole), size)]


def _chained(blocks: Iterable[bytes], salt: bytes) -> list[int]:
    """A number for each block and all before it: equal ones stand for equal prefixes, and say nothing of what these are."""
    numbers, link = [], b""
    for block in blocks:
        link = hmac.digest(salt, link + block, hashlib.sha256)
        numbers.append(int.from_bytes(link[:8]) >> 1)
    return numbers

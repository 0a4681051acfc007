"""Export of logs as traces of salted, chained block hashes, which show shared prefixes but no text."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from loopkit.cache.prefixes.prompt_parts import Prompt
from loopkit.cache.prefixes.prompt_parts import parts as parts_of
from loopkit.encoding import encode
from loopkit.engines.evidence.observation import Observation
from loopkit.errors import InvalidConfig, LogError, describe, kind_of
from loopkit.logs.frames.columns import Part
from loopkit.logs.requests import number_at

__all__ = ["export_trace"]

SALT_BYTES = 16
"Minimum length of a salt in bytes. A shorter salt could be found by trial, and with it the texts."


def export_trace(parts: Sequence[Part], path: Path, salt: bytes, block: int) -> int:
    """Write a trace, and return the number of its lines; see `loopkit.Logs.export_trace`."""
    if not isinstance(salt, bytes):
        raise InvalidConfig("salt", f"it must be bytes; got {kind_of(salt)}", f"Give at least {SALT_BYTES} random bytes")
    if len(salt) < SALT_BYTES:
        why = f"it must have at least {SALT_BYTES} bytes; got {len(salt)}"
        raise InvalidConfig("salt", why, "Give random bytes and keep them secret")
    if not isinstance(block, int) or block < 1:
        raise InvalidConfig("block", f"it must be an integer of at least 1; got {block!r}")
    begin = min((part.started for part in parts if str(part.started) != "NaT"), default=None)
    written = 0
    try:
        with _new_file(path) as file:
            for part in parts:
                for at, known in enumerate(() if part.requests is None else part.requests()):
                    found = _blocks_of(known, block)
                    if found is None:
                        continue
                    unit, length, blocks = found
                    time = part.usage["time"][at]
                    row = {
                        "timestamp": None if begin is None or str(time) == "NaT" else int((time - begin).astype("int64")) // 1000,
                        "input_length": length,
                        "output_length": number_at(part.usage["completion_tokens"][at]),
                        "hash_ids": _chained_hashes(blocks, salt),
                        "unit": unit,
                        "block_size": block if unit != "blocks" else None,
                        "prompt_tokens": number_at(part.usage["prompt_tokens"][at]),
                        "cached_tokens": number_at(part.usage["cached_tokens"][at]),
                        "session": _chained_hashes([part.session.encode("utf-8", "surrogateescape")], salt)[0],
                        "epoch": part.epoch,
                        "engine": part.engine,
                    }
                    file.write(encode(row) + b"\n")
                    written += 1
    except FileExistsError:
        raise LogError(str(path), "the file exists already, and nothing is overwritten", "Choose another name") from None
    except OSError as error:
        raise LogError(str(path), f"it cannot be written: {describe(error)}") from error
    return written


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file, and rename it to ``path`` when it is complete. So ``path`` never contains an unfinished trace."""
    _check_free(path)
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with beside.open("xb") as file:
            yield file
        _check_free(path)  # another process may have created it
        beside.rename(path)
    finally:
        beside.unlink(missing_ok=True)


def _check_free(path: Path) -> None:
    if os.path.lexists(path):
        raise FileExistsError(path)


def _blocks_of(known: Observation | Prompt | None, block: int) -> tuple[str, int, list[bytes]] | None:
    """Return the unit of a prompt's length, its length, and its blocks as bytes; None if only the token counts are known."""
    if isinstance(known, Observation):
        if known.tokens is not None:
            known = Prompt(tokens=known.tokens.tokens)
        else:
            known = None if known.body is None else Prompt(body=known.body)
    if known is None:
        return None
    if known.blocks is not None:
        return "blocks", len(known.blocks), [str(each).encode() for each in known.blocks]
    pieces = parts_of(known, {}, {})
    whole = b"".join(pieces[at] for at in range(len(pieces)))
    size = block * 8 if pieces.unit == "tokens" else block
    return pieces.unit, len(whole) * block // size, [whole[at : at + size] for at in range(0, len(whole), size)]


def _chained_hashes(blocks: Iterable[bytes], salt: bytes) -> list[int]:
    """Return a hash for each block, which also covers all blocks before it. Equal hashes mean equal prefixes."""
    numbers, link = [], b""
    for block in blocks:
        link = hmac.digest(salt, link + block, hashlib.sha256)
        numbers.append(int.from_bytes(link[:8]) >> 1)
    return numbers

"""Moments, many at once, against the pattern of a timestamp and the standard library's reading of it."""

from __future__ import annotations

import datetime
import random

import numpy as np
import pytest

from loopkit.ids import TIME
from loopkit.logs.frames import timestamps
from loopkit.logs.frames.timestamps import parse_timestamps

CHANCE = random.Random(3)
PARTS = [
    ("0000", "0001", "1677", "1900", "1969", "1970", "2000", "2024", "2026", "2100", "9999"),
    ("00", "01", "02", "04", "11", "12", "13", "99"),
    ("00", "01", "28", "29", "30", "31", "32"),
    ("00", "23", "24", "99"),
    ("00", "59", "60"),
    ("00", "59", "60", "61"),
    ("000000", "999999", "000001", "123456"),
]


@pytest.fixture(params=[0, 150])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read together, and one by one."""
    monkeypatch.setattr(timestamps, "FEW", request.param)


@pytest.mark.usefixtures("few")
def test_what_a_timestamp_is_is_read_and_nothing_else() -> None:
    read = 0
    for _ in range(20_000):
        text = "{}-{}-{}T{}:{}:{}.{}Z".format(*map(CHANCE.choice, PARTS))
        if CHANCE.random() < 0.1:
            at = CHANCE.randrange(len(text))
            text = text[:at] + CHANCE.choice("+-zZ: 0x/\0") + text[at + 1 :]
        texts = np.array([b"2026-11-30T07:31:05.000001Z", text.encode()], "S27")
        if TIME.fullmatch(text):
            read += 1
            assert parse_timestamps(texts)[1].item() == datetime.datetime.fromisoformat(text[:-1])
        else:
            with pytest.raises(ValueError, match="invalid timestamp"):
                parse_timestamps(texts)
    assert read > 500


@pytest.mark.usefixtures("few")
def test_another_form_has_its_own_fraction() -> None:
    texts = np.array([b"2024-02-29T23:59:59.987Z"], "S25")
    assert parse_timestamps(texts, b"0000-00-00T00:00:00.000Z\0")[0] == np.datetime64("2024-02-29T23:59:59.987000")
    with pytest.raises(ValueError, match="invalid timestamp"):
        parse_timestamps(
            np.array([b"2024-02-29T23:59:59.987Z", b"2023-02-29T23:59:59.987Z"], "S25"), b"0000-00-00T00:00:00.000Z\0"
        )
    assert parse_timestamps(texts[:0], b"0000-00-00T00:00:00.000Z\0").dtype == "datetime64[us]"

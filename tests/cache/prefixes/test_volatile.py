"""What will be stale, and what only looks like it."""

from __future__ import annotations

import time
import uuid
from datetime import datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopkit.cache.prefixes.volatile import find_volatile

TMP = "/" + "tmp"  # in pieces: no file of ours holds a path of a machine
WINDOWS = "AppData\\Local\\Temp"


def spans(text: str) -> list[tuple[str, str]]:
    return [(span.kind, span.text) for span in find_volatile(text)]


@pytest.mark.parametrize(
    ("text", "kind", "span"),
    [
        # a time of the day
        ("Now: 2026-11-30 07:31:05", "time", "2026-11-30 07:31:05"),
        ("(2026-11-30T07:31:05.123456Z)", "time", "2026-11-30T07:31:05.123456Z"),
        ("at 2026-11-30T07:31:05+01:00.", "time", "2026-11-30T07:31:05+01:00"),
        ("2026/11/30 07:31", "time", "2026/11/30 07:31"),
        ("stamp 20261130T073105Z", "time", "20261130T073105Z"),
        ("Mon, 30 Nov 2026 07:31:05 GMT", "time", "Mon, 30 Nov 2026 07:31:05 GMT"),
        ("November 30, 2026 at 7:31 pm UTC", "time", "November 30, 2026 at 7:31 pm UTC"),
        ("11/30/2026, 7:31 AM", "time", "11/30/2026, 7:31 AM"),
        ("30.11.2026 07:31", "time", "30.11.2026 07:31"),
        ("[07:31:05] ready", "time", "07:31:05"),
        ("07:31:05.250 ready", "time", "07:31:05.250"),
        ("Current time: 07:31", "time", "Current time: 07:31"),
        ("The time is now 07:31 UTC", "time", "The time is now 07:31 UTC"),
        ("It is 7 pm in Lima.", "time", "It is 7 pm"),
        # a date
        ("Date: 2026-11-30.", "date", "2026-11-30"),
        ("30 November 2026", "date", "30 November 2026"),
        ("the 3rd of March 2026,", "date", "3rd of March 2026"),
        ("Nov 30, 2026", "date", "Nov 30, 2026"),
        ("Monday, November 30", "date", "Monday, November 30"),
        ("since 30.11.2026", "date", "30.11.2026"),
        ("by 11/30/2026", "date", "11/30/2026"),
        ("Today is Monday.", "date", "Today is Monday"),
        ("Today's date: 30 November", "date", "Today's date: 30 November"),
        # a timestamp
        ("ts=1796036284", "timestamp", "1796036284"),
        ("at 1796036284, or so", "timestamp", "1796036284"),
        ("1796036284.251", "timestamp", "1796036284.251"),
        ("1796036284123 ms", "timestamp", "1796036284123"),
        ("run_1796036284_7", "timestamp", "1796036284"),
        # ids of a moment
        ("id 123e4567-e89b-12d3-a456-426614174000", "uuid", "123e4567-e89b-12d3-a456-426614174000"),
        ("pid 1234", "process_id", "pid 1234"),
        ("{pid=1234}", "process_id", "pid=1234"),
        ("Process ID: 77", "process_id", "Process ID: 77"),
        (f"Look at {TMP}/abc/x.txt.", "temporary_path", f"{TMP}/abc/x.txt"),
        ("'/private/var/folders/zz/9k/T/out'", "temporary_path", "/private/var/folders/zz/9k/T/out"),
        (f"C:\\Users\\ann\\{WINDOWS}\\x1", "temporary_path", f"{WINDOWS}\\x1"),
        ("a nonce=fa690 here", "nonce", "nonce=fa690"),
        ('"nonce": "fa690"', "nonce", 'nonce": "fa690'),
        ("request_id: req-8f3a", "nonce", "request_id: req-8f3a"),
        ("key 0c1e57098aab1234.", "nonce", "0c1e57098aab1234"),
        ("call_01XFDUDYJgAACzvnptvVoYEL", "nonce", "call_01XFDUDYJgAACzvnptvVoYEL"),
        ("token 9i1HhcwdhizX7u8NZNzyLbvT97bfrMf", "nonce", "9i1HhcwdhizX7u8NZNzyLbvT97bfrMf"),
        ("<Tool object at 0x7f3a2c001b40>", "nonce", "0x7f3a2c001b40"),
        # a counter
        ("This is request 17.", "counter", "request 17"),
        ("request 17", "counter", "request 17"),
        ("turn 3 of 9", "counter", "turn 3 of"),
        ("Attempt 2/5", "counter", "Attempt 2/5"),
        ("Message number 8", "counter", "Message number 8"),
        ("run #12", "counter", "run #12"),
        ("(#12)", "counter", "#12"),
        ("tokens left: 8123", "counter", "tokens left: 8123"),
        ("Remaining tokens: 8_123", "counter", "Remaining tokens: 8_123"),
        ("You have 8,123 tokens left.", "counter", "8,123 tokens left"),
        ("49 % used", "counter", "49 % used"),
        ("context 49.5% used", "counter", "49.5% used"),
        ("uptime: 4711 s", "counter", "uptime: 4711"),
    ],
)
def test_what_will_be_stale(text: str, kind: str, span: str) -> None:
    (found,) = find_volatile(text)
    assert (found.kind, found.text) == (kind, span)
    assert text[found.start : found.end] == span


@pytest.mark.parametrize(
    "text",
    [
        "",
        "You are a helpful assistant. Be brief.",
        "Open from 9:00 to 17:00.",  # a schedule is as true tomorrow
        "Every day at 4 pm, and at 10:30 on Sundays.",
        "Meeting time: 10:30",
        "version 1.2.3, v2026.10.11549, Python 3.11",
        "192.168.1.1:8080",
        "pages 10-20, ratio 3:2, John 3:16",
        "$1,500,000,000 or 12.50 EUR",
        "In 2024, from 1999 to 2026, in June 2024.",
        "Step 1: read the file. Step 2: write it. 3. Done.",
        "See issue #12 and PR #7; rule #3.",
        "We are #1.",
        "color: #fff; background: #123456; #12345678",
        "[the second](#2) &#12;",
        "gpt-4o-2024-08-06, claude-sonnet-4-5-20250929, SmolLM2-135M-Instruct-Q4_1",
        "May 5 people come? March on, 3 of you.",
        "Turn 90 degrees. Request 3 items. Process 10 files. Run 4 tests.",
        "You may call 3 tools; at most 1500 tokens; max_tokens: 1024",
        "call 911",
        "a PID controller with 3 terms",
        f"Write scratch files to {TMP}/ or ~{TMP}/x or /home/ann{TMP}/x.",
        "session id: string, request_id (text)",
        "3.14159265358979, 12345678901234567890, 6.02e23",
        "+1 650 555 1234, +15551234567",
        "00:1a:2b:3c:4d:5e and 10:20:30:40",
        "ISO 8601:2019, RFC 2119, UTF-8",
        "https://example.org/2026/11/30/post",
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdefghijklmnopqrstuvwxyz",
        "getUserByNameAndAge2 convertUnicodeToAscii16 call_transformers4",
        "internationalisation, deadbeefdeadbeef",
        "100 % sure; 20 % of users",
        "25:61:61",
        "2026-13-45",
    ],
)
def test_what_only_looks_like_it(text: str) -> None:
    assert spans(text) == []


def test_several_in_the_order_of_the_text() -> None:
    text = f"Now: 2026-11-30 07:31:05 (pid 77). Files in {TMP}/x7; request 17 of today, 49 % used."
    assert [kind for kind, _ in spans(text)] == ["time", "process_id", "temporary_path", "counter", "counter"]


PIECES = [
    *("2026-11-30", "07:31", ":05", "T", "Z", " ", "\n", ".", ",", "-", "/", ":", "#", "%", "=", "'", "é", "\u2028", "𝟙"),
    *("now", "is ", "today", "Monday", "30 ", "November", "pid", "request ", "turn ", "of", "tokens ", "left", "used", "id"),
    *(TMP + "/", "/var/folders/", WINDOWS + "\\", "1796036284", "12", "7", "ab12", "0x", "nonce", "sess_", "FFFF0000", "aB3"),
]
texts = st.text(max_size=80) | st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@given(texts)
def test_spans_lie_in_the_text_in_order_and_apart(text: str) -> None:
    found = find_volatile(text)
    for span in found:
        assert 0 <= span.start < span.end <= len(text)
        assert text[span.start : span.end] == span.text
    for one, next_ in pairwise(found):
        assert one.end <= next_.start


@given(texts, texts)
def test_lines_are_judged_apart(first: str, second: str) -> None:
    """What stands on lines of its own is found whatever stands around."""
    whole = [span.text for span in find_volatile(f"{first}\n\n2026-11-30 07:31:05\n\n{second}")]
    assert "2026-11-30 07:31:05" in whole


@given(
    st.datetimes(datetime(2000, 1, 1), datetime(2099, 12, 31)),
    st.sampled_from(["%Y-%m-%d %H:%M:%S", "%a, %d %b %Y %H:%M:%S", "%c"]),
)
def test_every_moment_as_python_writes_it(moment: datetime, form: str) -> None:
    written = moment.strftime(form)
    assert any(kind == "time" for kind, _ in spans(f"Now: {written}."))


@given(st.uuids())
def test_every_uuid(value: uuid.UUID) -> None:
    assert spans(f"<{value}>") == [("uuid", str(value))]


@pytest.mark.parametrize(
    "piece",
    [
        "word ",
        "12:",
        "1,",
        TMP + "/..... ",
        "now ",
        "request_id: ",
        "ab12",
        "2026-11-30 07:31:05 ",
        "request 1     ",
        " ",
        "-",
        "Monday, ",
    ],
)
def test_time_is_linear_in_the_text(piece: str) -> None:
    def seconds(size: int) -> float:
        text = "nonce=" + piece * (size // len(piece))
        runs = []
        for _ in range(3):
            began = time.process_time()
            find_volatile(text)
            runs.append(time.process_time() - began)
        return min(runs)

    small, large = seconds(20_000), seconds(160_000)
    assert large < 24 * max(small, 0.001)  # 8 times the text; its square would be 64 times the time

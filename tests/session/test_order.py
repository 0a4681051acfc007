"""The order machine against the grammar that the specification states."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from loopkit.contract.records import (
    Assistant,
    CacheLoss,
    Carried,
    LogRecord,
    ServerFacts,
    SessionStart,
    TagsFacts,
    ToolResult,
    Usage,
    UsageRecord,
    User,
)
from loopkit.session.order import Order, group_ends
from tests.session.build import TIME, calls, end

GRAMMAR = re.compile(r"S((U?AKL?)(R*))*E?")


def start(carried: int = 0, epoch: int = 0) -> SessionStart:
    return SessionStart(
        time=TIME,
        session="lima",
        epoch=epoch,
        slot=None,
        baseline_sha256="0" * 64,
        options={},
        server=ServerFacts(),
        tags=TagsFacts(id="default-1"),
        carried=Carried(kind="turn", from_epoch=epoch - 1, records=carried) if carried else UNSET,
    )


def usage(request: int) -> UsageRecord:
    return UsageRecord(
        time=TIME,
        request=request,
        request_sha256="0" * 64,
        request_bytes=1,
        usage=Usage(),
        finish_reason=None,
        response_id=None,
        attempts=1,
        elapsed_ms=1.0,
    )


def loss(request: int) -> CacheLoss:
    return CacheLoss(
        time=TIME,
        request=request,
        expected_tokens=2,
        expected_exact=True,
        reusable_tokens=None,
        cached_tokens=1,
        lost_tokens=1,
        cause="server",
        certainty="suspected",
        fixable_by=None,
        location=None,
        evidence={},
    )


def result(call: int, id: str) -> ToolResult:
    return ToolResult(time=TIME, call=call, tool_call_id=id, name="f", content="", truncated=False, status="ok")


def records_of(letters: str) -> list[LogRecord]:
    """Records for a word of the grammar, with numbers and call ids that fit, so that only their order can be wrong."""
    made: list[LogRecord] = []
    requests = call = 0
    for at, letter in enumerate(letters):
        if letter == "S":
            made.append(start())
        elif letter == "U":
            made.append(User(time=TIME, content=""))
        elif letter == "A":
            results = re.match(r"AKL?(R*)", letters[at:])
            ids = [f"c{number}" for number in range(len(results[1]) if results else 0)]
            made.append(Assistant(time=TIME, content="", tool_calls=calls(*ids) if ids else UNSET))
            open_ids = list(ids)
        elif letter == "K":
            requests += 1
            made.append(usage(requests))
        elif letter == "L":
            made.append(loss(max(requests, 1)))
        elif letter == "R":
            call += 1
            made.append(result(call, open_ids.pop(0) if "A" in letters[:at] and open_ids else "none"))
        else:
            made.append(end())
    return made


def whole(records: list[LogRecord]) -> bool:
    order = Order("lima", 0)
    return not any(order.add(record) for record in records) and order.sound


@settings(max_examples=1500)
@given(
    st.one_of(
        st.text("SUAKLRE", max_size=8),
        st.lists(st.sampled_from(["UAK", "AK", "UAKL", "AKRR", "UAKLR", "U", "K", "E"]), max_size=6).map(
            lambda w: "S" + "".join(w)
        ),
    )
)
def test_a_log_is_whole_exactly_where_the_grammar_says_so(letters: str) -> None:
    assert whole(records_of(letters)) == (GRAMMAR.fullmatch(letters) is not None)


@given(st.lists(st.sampled_from(["UAK", "AK", "UAKL", "AKRR", "UAKLR", "U", "K", "E", "S", "R"]), max_size=9))
def test_taking_many_is_taking_one_by_one(words: list[str]) -> None:
    records = records_of("S" + "".join(words))
    one, many = Order("lima", 0), Order("lima", 0)
    whys = [why for record in records if (why := one.add(record))][:1]
    taken, why = many.take(records)
    assert why == (whys[0] if whys else "")
    if not why:
        assert taken == len(records)
        assert (one.sound, one.requests, one.highest_call, one.pending) == (
            many.sound,
            many.requests,
            many.highest_call,
            many.pending,
        )


def test_what_was_expected_is_said() -> None:
    user, assistant = User(time=TIME, content=""), Assistant(time=TIME, content="")
    asking = Assistant(time=TIME, content=None, tool_calls=calls("a", "b"))
    table: list[tuple[list[LogRecord], str]] = [
        ([user], "a user record is not allowed here: session_start comes first"),
        ([start(), start()], "it is the first record of a log, and only the first"),
        ([start(), user, user], "an assistant record comes next"),
        ([start(), user, assistant, user], "a usage record comes next"),
        ([start(), usage(1)], "a user or an assistant record, or epoch_end, comes next"),
        ([start(), asking, usage(1), user], "a tool_result comes next, for 'a', 'b'"),
        ([start(), asking, usage(1), asking], "a tool_result comes next, for 'a', 'b'"),
        ([start(), asking, usage(1), result(1, "c")], "which is not an open call (open calls: 'a', 'b')"),
        ([start(), asking, usage(1), result(1, "a"), result(2, "a")], "which is not an open call (open calls: 'b')"),
        ([start(), assistant, usage(1), result(1, "a")], "(no call is open)"),
        ([start(), assistant, usage(2)], "usage.request is 2, but the next request is 1"),
        ([start(), assistant, usage(1), loss(2)], "cache_loss.request is 2, but the usage record before it has request 1"),
        ([start(), asking, usage(1), result(1, "a"), loss(1)], "it comes directly after the usage record of its request"),
        ([start(), end(), user], "no record may follow epoch_end"),
        ([start(), Assistant(time=TIME, tool_calls=calls("a", "a"))], "contains an id twice"),
        ([start(epoch=1)], "session_start.epoch is 1, but the file's epoch is 0"),
    ]
    for records, why in table:
        order = Order("lima", 0)
        *before, last = records
        assert not any(order.add(record) for record in before), why
        assert why in order.add(last)


def test_calls_may_be_open_at_the_end() -> None:
    order = Order("lima", 0)
    order.take([start(), Assistant(time=TIME, tool_calls=calls("a", "b")), usage(1), result(3, "b")])
    assert order.sound
    assert [call.id for call in order.pending] == ["a"]
    assert order.highest_call == 3


def test_carried_records_are_counted_and_closed() -> None:
    asking = Assistant(time=TIME, content=None, tool_calls=calls("a"))
    user = User(time=TIME, content="")
    order = Order("lima", 1, highest_call=9)
    opening: list[LogRecord] = [start(3, epoch=1), user, asking, result(2, "a")]
    assert order.take(opening) == (4, "")
    assert (order.sound, order.highest_call) == (True, 9)
    assert "carried" in Order("lima", 1).take([start(2, epoch=1), user, usage(1)])[1]
    assert "without a result" in Order("lima", 1).take([start(2, epoch=1), user, asking])[1]
    short = Order("lima", 1)
    short.take([start(2, epoch=1), user])
    assert "1 of the records" in short.unfinished()
    later = replace(start(1, epoch=1), carried=Carried(kind="turn", from_epoch=1, records=1))
    assert "from_epoch is 1, but this is epoch 1" in Order("lima", 1).take([later])[1]


def test_where_an_epoch_can_be_parted() -> None:
    assert group_ends(records_of("SUAKLRRAKUAK")) == [1, 7, 9, 12]
    assert group_ends(records_of("SE")) == [1]
    assert group_ends(records_of("SAKE")) == [1, 3]
    order: list[LogRecord] = [start(1, epoch=1), User(time=TIME, content=""), Assistant(time=TIME, content=""), usage(1)]
    assert group_ends(order) == [2, 4]

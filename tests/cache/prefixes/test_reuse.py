"""Shared prefixes: what a brute-force comparison of every pair says, in time that grows with the input."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopkit.cache import Prompt, reuse
from loopkit.cache.prefixes.prompt_parts import read
from loopkit.cache.prefixes.reuse import Reuse, Shared, shared_prefixes
from loopkit.contract.request import Request
from loopkit.encoding import encode
from loopkit.errors import InvalidConfig
from tests.session.build import create, group

SPACE = st.sampled_from(["", "", "", " ", "\n"])
MESSAGE = st.sampled_from(
    [
        *('{"role":"user","content":"a"}', '{"role":"user","content":"ab"}', '{"role": "user"}'),
        *('{"n":1.10,"n":1}', "{}", '"é"', '"è"'),
    ]
)
MEMBER = st.sampled_from(
    [('"model"', '"m"'), ('"model"', '"n"'), ('"tools"', '["a"]'), ('"tools"', '["b"]'), ('"mod\\u0065l"', "1")]
)
ASKED = {"role": "user", "content": "a"}
UNREAD = st.sampled_from(['"seed":1', '"temperature":0.7', '"id_slot":2'])
SESSIONS = st.sampled_from([None, "a", "b"])


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, str, list[int] | None]:
    """A body, what of it is compared (all but members that no template reads, closing brackets apart), and where messages end."""
    pairs = draw(st.lists(MEMBER, max_size=2, unique_by=lambda member: "mod" in member[0]))
    members = [f"{draw(SPACE)}{name}:{draw(SPACE)}{value}{draw(SPACE)}" for name, value in pairs]
    items = [f"{draw(SPACE)}{each}{draw(SPACE)}" for each in draw(st.lists(MESSAGE, max_size=4))]
    opening = f'"messages":{draw(SPACE)}['
    compared = "{" + "".join(f"{member}," for member in members) + opening
    ends = []
    for index, item in enumerate(items):
        compared += ("," if index else "") + item
        ends.append(len(compared.encode()))
    everything = [*members]
    everything.insert(draw(st.integers(0, len(members))), opening + ",".join(items) + "]" + draw(SPACE))
    for unread in draw(st.lists(UNREAD, max_size=1)):
        everything.insert(draw(st.integers(0, len(everything))), unread)
    body = "{" + ",".join(everything) + "}"
    if draw(st.integers(0, 5)) == 0:  # cut off: compared as it stands, and nothing is known of its messages
        body = compared = body[: draw(st.integers(0, len(body) - 1))]
        return body.encode(), compared, None
    return body.encode(), compared, ends


def longest(compared: Sequence[Sequence[Any]], now: int) -> list[int]:
    def shared(ours: Sequence[Any], theirs: Sequence[Any]) -> int:
        return next((at for at, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), min(len(ours), len(theirs)))

    return [shared(compared[now], theirs) for theirs in compared[:now]]


def brute(compared: Sequence[Sequence[Any]], sessions: Sequence[str | None]) -> list[tuple[Any, ...]]:
    """For each: which and how much of the longest with any earlier; how much with the one before; which and how much in its
    session."""
    found = []
    for now in range(len(compared)):
        shared = longest(compared, now)
        most = max(shared, default=0)
        same = [at for at in range(now) if sessions[at] == sessions[now] is not None]
        found.append(
            (
                (shared.index(most) if most else None, most),
                shared[-1] if shared else None,
                (same[-1], shared[same[-1]]) if same else (None, None),
            )
        )
    return found


def told(found: list[Reuse], unit: str) -> list[tuple[Any, ...]]:
    def count(shared: Shared) -> Any:
        return getattr(shared, unit)

    return [
        ((each.earlier.request, count(each.earlier)), count(each.before), (each.session.request, count(each.session)))
        for each in found
    ]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(bodies(), SESSIONS), max_size=8))
def test_bodies_as_the_brute_force_says(asked: list[tuple[tuple[bytes, str, list[int] | None], str | None]]) -> None:
    compared = [text.encode() for (_, text, _), _ in asked]
    sessions = [session for _, session in asked]
    found = shared_prefixes(Prompt(body=body, session=session) for (body, _, _), session in asked)
    assert told(found, "bytes") == brute(compared, sessions)
    assert [each.size.bytes for each in found] == [len(text) for text in compared]
    for each, ((_, _, ends), _) in zip(found, asked):
        for shared in (each.size, each.earlier, each.before, each.session):
            if shared.bytes is not None:
                assert shared.messages == (None if ends is None else sum(end <= shared.bytes for end in ends))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.lists(st.sampled_from([0, 256, 257]), max_size=8), SESSIONS), max_size=10))
def test_tokens_and_blocks_as_the_brute_force_says(asked: list[tuple[list[int], str | None]]) -> None:
    wanted = brute([tokens for tokens, _ in asked], [session for _, session in asked])
    assert told(shared_prefixes(Prompt(tokens=tokens, session=session) for tokens, session in asked), "tokens") == wanted
    hashes = [([f"hash of {token}" for token in tokens], session) for tokens, session in asked]
    assert told(shared_prefixes(Prompt(blocks=blocks, session=session) for blocks, session in hashes), "blocks") == wanted


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from([ASKED, dict(reversed(ASKED.items())), {}]), max_size=5), SESSIONS),
        max_size=8,
    )
)
def test_messages_as_the_brute_force_says(asked: list[tuple[list[dict[str, Any]], str | None]]) -> None:
    found = shared_prefixes(Prompt(messages=messages, session=session) for messages, session in asked)
    written = [[encode(message) for message in messages] for messages, _ in asked]  # dicts are equal in any order, bytes are not
    assert [each.earlier.messages for each in found] == [max(longest(written, now), default=0) for now in range(len(written))]
    assert found == shared_prefixes(Prompt(body=encode({"messages": messages}), session=session) for messages, session in asked)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y", ""]), st.booleans()), max_size=12))
def test_shared_chunks_are_the_same_as_plain_bodies(turns: list[tuple[str, str, bool]]) -> None:
    """Requests whose messages are one object, as loopkit's are, against their bodies parsed from bytes."""
    rows: dict[str, list[bytes]] = {}
    requests, plain = [], []
    for session, text, edited in turns:
        row = rows.setdefault(session, [])
        newest = b',{"role":"user","content":"%s"}' % text.encode()
        head = b'{"id_slot":%d,"tools":[],"messages":[{"role":"system","content":"e"}' % len(rows)
        request = Request(head, row, len(row), newest, "", "", 0)
        request.session = session
        requests.append(request)
        plain.append(Prompt(body=request.body, session=session))
        row += [bytes(bytearray(newest)), b',{"role":"assistant"}']
        if edited:
            rows[session] = [b',{"edited":1}', *row[1:]]
    assert shared_prefixes(requests) == shared_prefixes(plain)


def test_a_session_extends_itself(tmp_path: Any) -> None:
    session = create(tmp_path)
    for text in ("Hi", "And?", "é"):
        session.extend(group(session, text))
    requests = list(session.requests())
    assert [(each.session, each.slot) for each in requests] == [(session.id, session.start.slot)] * len(requests)
    assert all(each.time for each in requests)
    found = shared_prefixes(requests)
    for number, each in enumerate(found[1:]):
        assert each.session == each.before == each.earlier
        assert each.session == Shared(number, found[number].size.bytes, found[number].size.messages)
    assert found == shared_prefixes(Prompt(body=each.body, session=each.session) for each in requests)


def test_units_are_compared_among_their_like() -> None:
    body = b'{"messages":[{}]}'
    found = shared_prefixes([body, Prompt(tokens=[1, 2], session="a"), body, Prompt(blocks=[1], session="a")])
    assert found[1].before == Shared(0)
    assert (found[2].earlier.request, found[2].share) == (0, 1.0)
    assert (found[3].session, found[3].share) == (Shared(1), 0.0)
    assert shared_prefixes([Prompt(tokens=[])])[0].share is None


def test_what_is_no_body_is_compared_as_bytes() -> None:
    found = shared_prefixes([b'{"n":1,"n":2,"messages":[]}', b'{"n":1,"n":3,"messages":[]}', b"not JSON", b"", b"not"])
    assert [each.earlier.bytes for each in found] == [0, 11, 0, 0, 3]
    assert {each.earlier.messages for each in found} == {None}


def test_a_body_that_was_cut_off_shares_what_is_there() -> None:
    whole, cut = b'{"messages":[{},{}]}', b'{"messages":[{},{}'
    for first, second, messages in ((whole, cut, None), (cut, whole, 2)):
        found = shared_prefixes([first, second])[1]
        assert found.before == found.earlier == Shared(0, len(cut), messages)


@pytest.mark.parametrize("body", [b'{"n":1,"n":1}', b'{"n":1,"n":22}', b'{"n":22,"n":1}', b"[]", b'{"n":1', b""])
def test_what_cannot_be_taken_apart(body: bytes) -> None:
    assert read(body) is None


@pytest.mark.parametrize("given", [{}, {"body": b"", "tokens": []}])
def test_a_prompt_is_known_in_one_way(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match="exactly one"):
        Prompt(**given)


def grown(sessions: int, turns: int) -> list[Request]:
    """Conversations taken in turn, each as an epoch keeps it."""
    draw = random.Random(0)
    text = draw.randbytes(20_000).hex().encode()
    head = b'{"model":"m","messages":[{"role":"system","content":"Be brief."}'
    rows: list[list[bytes]] = [[] for _ in range(sessions)]
    requests = []
    for _ in range(turns):
        for number, row in enumerate(rows):
            for role in (b"user", b"assistant"):
                at = draw.randrange(39_000)
                row.append(b',{"role":"%s","content":"%s"}' % (role, text[at : at + 500]))
            requests.append(Request(head, row, len(row), None, "", "", 0))
            requests[-1].session = str(number)
    return requests


def twins(sessions: int, turns: int) -> list[Request]:
    """Conversations that say the same, taken in turn, as parallel runs of one task are; each has its own copy of it."""
    head = b'{"model":"m","messages":[{"role":"system","content":"S"}'
    rows: list[list[bytes]] = [[] for _ in range(sessions)]
    requests = []
    for turn in range(turns):
        for number, row in enumerate(rows):
            row.append(b',{"role":"user","content":"%d"}' % turn)
            requests.append(Request(head, row, len(row), None, "", "", 0))
            requests[-1].session = str(number)
    return requests


def test_twins_share_what_their_bodies_share() -> None:
    requests = twins(3, 6)
    requests += [Request(each.chunks.head, each.chunks.messages, 2, None, "", "", 0) for each in requests[-3:]]  # and back again
    requests += requests[:5]
    requests.append(Request(b'{"messages":[{"role":"system"}', requests[0].chunks.messages, 4, None, "", "", 0))
    assert shared_prefixes(requests) == shared_prefixes(Prompt(body=each.body, session=each.session) for each in requests)


def test_time_grows_with_twins_as_with_others() -> None:
    few, many = twins(2, 300), twins(2, 2400)

    def taken(requests: list[Request]) -> float:
        start = time.perf_counter()
        shared_prefixes(requests)
        return time.perf_counter() - start

    taken(few)
    assert min(taken(many) / taken(few) for _ in range(5)) < 24, "8 times the requests; each with all of its twin is 64 times"


BAD_TOKENS: list[Any] = [[2**70], [None], [1.5], "12"]


@pytest.mark.parametrize(
    "bad",
    [
        *(Prompt(tokens=tokens) for tokens in BAD_TOKENS),
        Prompt(blocks=[[1]]),  # type: ignore[list-item]
        *(None, 7, "{}"),
    ],
)
def test_what_is_no_request_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"Give|Tokens are"):
        shared_prefixes([b"{}", bad])


def test_time_grows_with_the_requests() -> None:
    few, many = grown(10, 100), grown(80, 100)

    def taken(requests: list[Request]) -> float:
        start = time.perf_counter()
        shared_prefixes(requests)
        return time.perf_counter() - start

    taken(few)
    ratios = sorted(taken(many) / taken(few) for _ in range(5))
    assert ratios[0] < 24, "8 times the requests; all pairs would be 64 times"


def test_time_grows_with_what_parts_at_one_place() -> None:
    """A thousand prompts that part in the midst of one long message, each at its own byte, are no thousand pairs."""
    few, many = (
        [Prompt(body=b'{"messages":["%sX%s"]}' % (b"a" * n, b"b" * (2 * size - n))) for n in range(size)] for size in (200, 800)
    )
    found = shared_prefixes(many)
    assert all(each.earlier.bytes == each.before.bytes for each in found[1:])

    def taken(prompts: list[Prompt]) -> float:
        start = time.perf_counter()
        shared_prefixes(prompts)
        return time.perf_counter() - start

    taken(few)
    assert min(taken(many) / taken(few) for _ in range(5)) < 40, "16 times the bytes"


class _Log:
    def requests(self) -> list[Prompt]:
        return [
            Prompt(body=b'{"messages":[{"role":"user","content":"Hi"}]}', session="a"),
            Prompt(tokens=[1, 2, 3], session="b"),
            Prompt(tokens=[1, 2, 4, 5], session="b"),
        ]


def test_the_frame_says_what_the_prefixes_say() -> None:
    frame, prefixes = reuse(_Log()), shared_prefixes(_Log().requests())
    assert frame.equals(reuse(_Log().requests())), "an object with requests counts as its requests"
    assert frame["session"].tolist() == ["a", "b", "b"]
    for name, part in (("size", "size"), ("earlier", "earlier"), ("previous", "before"), ("session", "session")):
        for count in ("request", "bytes", "messages", "tokens", "blocks"):
            if (name, count) != ("size", "request"):
                values = [None if value is pd.NA else value for value in frame[f"{name}_{count}"]]
                assert values == [getattr(getattr(each, part), count) for each in prefixes]
    assert frame["share"].tolist() == [each.share for each in prefixes]


def test_the_frame_of_no_request_has_its_columns() -> None:
    empty = reuse([])
    assert list(empty.columns) == list(reuse(_Log()).columns)
    assert empty.dtypes.equals(reuse(_Log()).dtypes)


def test_what_has_no_requests_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="expected Logs, a Session or an iterable of requests; got an int"):
        reuse(5)  # type: ignore[arg-type]

"""Where two requests part, and the culprit by its name."""

from __future__ import annotations

import json
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopkit.cache import Prompt, divergence
from loopkit.cache.prefixes.change_kinds import KINDS
from loopkit.contract.json_position import first_difference
from loopkit.errors import InvalidConfig
from tests.session.build import create, group

UUIDS = "Run 0b6f9e52-6f0c-4c56-8a0e-0d7a7d6a5a11.", "Run 0b6f9e52-6f0c-4c56-8a0e-0d7a7d6a5a12."


def body(*messages: Any, **members: Any) -> bytes:
    return json.dumps({**members, "messages": list(messages)}, ensure_ascii=False, separators=(",", ":")).encode()


def spaced(*messages: Any) -> bytes:
    """As Python's own encoder writes it."""
    return json.dumps({"messages": messages}).encode()


def said(content: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": content}


def tool(name: str, about: str = "Does it.", **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def called(arguments: str) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "edit", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def two(a: Any, b: Any) -> tuple[bytes, bytes]:
    """Two conversations that differ in the content of their first message, and go on alike."""
    return body(said(a), said("Go on."), model="m"), body(said(b), said("Go on."), model="m")


def texts(a: str, b: str) -> tuple[bytes, bytes]:
    """Two bodies given as they are written."""
    return a.encode(), b.encode()


CONTENT = "messages[0].content"
ARGUMENTS = "messages[0].tool_calls[0].function.arguments"
X, Y, Z = tool("x"), tool("y"), tool("z")
AB, BA = tool("x", required=["a", "b"]), tool("x", required=["b", "a"])
OLD, MIDDLE, NEW = said("Old."), said("Yes.", "assistant"), said("New.")
THOUGHT = {"role": "assistant", "reasoning_content": "Hm.", "content": "Yes."}
PARTS = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}]

CASES: list[tuple[str, str, tuple[bytes, bytes]]] = [
    ("time", CONTENT, two("Now: 2026-11-30 07:31:05. Be brief.", "Now: 2026-11-30 07:31:59. Be brief.")),
    ("time", CONTENT, two("Now: 2026-11-30 07:31:05.", "Now: 2026-12-01 07:31:05.")),
    ("time", CONTENT, two("At 07:31 the work goes on.", "At 07:32 the work goes on.")),
    ("time", CONTENT, two("Now: 2026-11-30 07:31", "Now: 2026-12-01")),
    ("time", CONTENT, two("Now: 07:31", "Now: 07:31:05")),
    ("date", CONTENT, two("Today is 2026-11-30.", "Today is 2026-12-01.")),
    ("timestamp", CONTENT, two("<t>1764488000</t>", "<t>1764488061</t>")),
    ("timestamp", "created", (body(NEW, created=1764488000), body(NEW, created=1764488061))),
    ("uuid", CONTENT, two(*UUIDS)),
    ("uuid", CONTENT, two(UUIDS[0], UUIDS[0].replace(" 0b", " 1c"))),
    ("process_id", CONTENT, two("pid: 4021 runs", "pid: 4150 runs")),
    ("temporary_path", CONTENT, two("See /var/folders/zz/ab12/log", "See /var/folders/zz/cd34/log")),
    ("counter", CONTENT, two("Turn: 9. Go.", "Turn: 10. Go.")),
    ("counter", CONTENT, two("[49 % used] Facts.", "[50 % used] Facts.")),
    ("counter", CONTENT, two("12,000 tokens left", "11,873 tokens left")),
    ("counter", CONTENT, two("Visit 7 of the page", "Visit 8 of the page")),
    ("counter", "messages[0].seq", (body({**NEW, "seq": 7}), body({**NEW, "seq": 8}))),
    ("number", CONTENT, two("It costs 12 EUR.", "It costs 13 EUR.")),
    ("number", ARGUMENTS, (body(called('{"price":12}')), body(called('{"price":11}')))),
    ("nonce", CONTENT, two("nonce=fa690 Be brief.", "nonce=36ee5 Be brief.")),
    ("nonce", CONTENT, two("build 9f3ac21 Be brief.", "build 07be9d4 Be brief.")),
    ("nonce", ARGUMENTS, (body(called('{"id":"run_5dK20sQx91LmZt44"}')), body(called('{"id":"run_9aB31kWe07PqRs82"}')))),
    ("key_order", "messages[0]", (body({"role": "user", "content": "a"}), body({"content": "a", "role": "user"}))),
    ("key_order", ARGUMENTS, (body(called('{"path":"b.py","edits":[]}')), body(called('{"edits":[],"path":"b.py"}')))),
    ("key_order", "tools[0].function.parameters", (body(tools=[tool("x", a=1, b=2)]), body(tools=[tool("x", b=2, a=1)]))),
    ("key_order", "body", (body(NEW, model="m", tools=[X]), body(NEW, tools=[X], model="m"))),
    ("tool_order", "tools", (body(NEW, tools=[X, Y, Z]), body(NEW, tools=[Y, X, Z]))),
    ("tool_order", "tools", (body(NEW, tools=[X, Y]), body(NEW, tools=[tool("y", "Does it well."), X]))),
    ("item_order", "tools[0].function.parameters.required", (body(tools=[AB]), body(tools=[BA]))),
    ("item_order", "messages", (body(OLD, MIDDLE, NEW), body(MIDDLE, NEW, OLD))),
    ("white_space", "messages[0].role", texts('{"messages":[{"role":"user","n":1}]}', '{"messages":[{"role": "user", "n": 1}]}')),
    ("white_space", "messages", texts('{"messages":[{"content":"a"}]}', '{"messages": [{"content":"b"}]}')),
    ("white_space", ARGUMENTS, (body(called('{"path": "b.py",  "n":1}')), body(called('{"path":"b.py","n":1}')))),
    ("white_space", CONTENT, two("Be brief.\n", "Be brief.")),
    ("white_space", CONTENT, two("one\r\ntwo", "one\ntwo")),
    ("white_space", CONTENT, two("a  b c", "a b c")),
    ("number_form", "messages[0].n", texts('{"messages":[{"n":1.10}]}', '{"messages":[{"n":1.1}]}')),
    ("number_form", ARGUMENTS, (body(called('{"n":1.0e2}')), body(called('{"n":100.0}')))),
    ("number_form", ARGUMENTS, (body(called('{"n":1}')), body(called('{"n":1.0}')))),
    ("escapes", CONTENT, texts(r'{"messages":[{"content":"caf\u00e9"}]}', '{"messages":[{"content":"café"}]}')),
    ("escapes", CONTENT, texts(r'{"messages":[{"content":"a\/b"}]}', '{"messages":[{"content":"a/b"}]}')),
    ("escapes", "messages[0]", texts(r'{"messages":[{"\u0061":1}]}', '{"messages":[{"a":1}]}')),
    ("escapes", ARGUMENTS, (body(called(r'{"new":"\u00e9"}')), body(called('{"new":"é"}')))),
    ("content_form", CONTENT, two("Hi", [{"type": "text", "text": "Hi"}])),
    ("reasoning", "messages[0].reasoning_content", (body(THOUGHT), body(said("Yes.", "assistant")))),
    ("reasoning", "messages[0].reasoning_content", (body({**THOUGHT, "reasoning_content": None}), body(THOUGHT))),
    ("reasoning", "messages[0].reasoning_content", (body(THOUGHT), body({**THOUGHT, "reasoning_content": ""}))),
    ("reasoning", CONTENT + "[0]", (body(said(PARTS)), body(said(PARTS[1:])))),
    ("dropped", "messages[0]", (body(OLD, MIDDLE, NEW), body(MIDDLE, NEW, said("Last.")))),
    ("dropped", "messages[0]", (spaced(OLD, MIDDLE, NEW), spaced(MIDDLE, NEW, said("Last.")))),
    ("dropped", "messages[1]", (body(OLD, MIDDLE, NEW, said("Last.")), body(OLD, NEW, said("Last.")))),
    ("dropped", "tools", (body(NEW, model="m", tools=[X]), body(NEW, model="m"))),
    ("dropped", "tools[1]", (body(NEW, tools=[X, Y, Z]), body(NEW, tools=[X, Z]))),
    ("added", "messages[0]", (body(OLD, NEW), body(said("Be brief.", "system"), OLD, NEW))),
    ("added", "tools[1]", (body(NEW, tools=[X]), body(NEW, tools=[X, Y]))),
    ("added", "tools", (body(NEW, model="m"), body(NEW, model="m", tools=[X]))),
    ("date", CONTENT, two("Be brief.", "Be brief, 2026-11-30.")),
    ("edited", CONTENT, two("Be brief.", "Be kind.")),
    ("edited", CONTENT, two("Hello there", "Hello there (and more)")),
    ("edited", CONTENT, two("See v1.2.3.", "See v1.2.4.")),
    ("edited", CONTENT, two("[old tool result cleared]", "A long result")),
    ("edited", "tools[1].function.description", (body(NEW, tools=[X, Y]), body(NEW, tools=[X, tool("y", "Does it well.")]))),
    ("edited", "tool_choice", (body(NEW, tool_choice="auto"), body(NEW, tool_choice="none"))),
    ("edited", "messages[0].strict", (body({**NEW, "strict": True}), body({**NEW, "strict": None}))),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "member", "pair"), CASES, ids=[f"{number}-{kind}" for number, (kind, _, _) in enumerate(CASES)])
def test_culprits_are_named(kind: str, member: str, pair: tuple[bytes, bytes]) -> None:
    found = divergence(*pair)
    assert found is not None
    assert (found.culprit, found.member, found.in_prompt) == (kind, member, True)
    assert found.a.before == found.b.before
    for side, text in zip((found.a, found.b), pair):
        assert f"{side.before}{side.changed}{side.after}" in text.decode()


@pytest.mark.parametrize(("kind", "member", "pair"), CASES, ids=[f"{number}-{kind}" for number, (kind, _, _) in enumerate(CASES)])
def test_the_other_way_round_too(kind: str, member: str, pair: tuple[bytes, bytes]) -> None:
    turned = {"dropped": "added", "added": "dropped"}
    found = divergence(*reversed(pair))
    assert found is not None
    assert (found.culprit, found.member) == (turned.get(kind, kind), member)


def test_every_kind_has_a_case_and_every_case_a_kind() -> None:
    assert {kind for kind, _, _ in CASES} == set(KINDS)


@pytest.mark.parametrize(
    ("kind", "member", "pair"),
    [
        ("time", CONTENT, (body(said("Now: 2026-11-30 07:31:05"), OLD), body(said("Now: 2026-11-30 07:31:06"), NEW))),
        ("edited", CONTENT, (body(said("Be brief."), said(UUIDS[0])), body(said("Be kind."), said(UUIDS[1])))),
        ("tool_order", "tools", (body(OLD, tools=[X, Y]), body(NEW, tools=[Y, X]))),
        ("key_order", "messages[0]", (body({"a": 1, "b": 2}), body({"b": 3, "a": 1}))),
        ("number", "messages[0].a", (body({"a": 1, "b": 2, "c": 3}), body({"a": 2, "c": 3, "b": 2}))),
        ("white_space", ARGUMENTS, (body(called('{"a": 1.10,"b":2}')), body(called('{"a":1.1,"b":3}')))),
    ],
)
def test_the_first_member_that_differs_decides(kind: str, member: str, pair: tuple[bytes, bytes]) -> None:
    found = divergence(*pair)
    assert found is not None
    assert (found.culprit, found.member) == (kind, member)


def test_tools_come_before_messages_wherever_they_stand() -> None:
    a, b = (b'{"messages":[{"content":"%s"}],"tools":["%s"]}' % pair for pair in ((b"a", b"x"), (b"b", b"y")))
    found = divergence(a, b)
    assert found is not None
    assert (found.member, found.offset) == ("tools[0]", a.index(b'x"'))
    assert divergence(a, a.replace(b'"}]', b'"},{}]')) is None


def test_what_no_template_reads_comes_last() -> None:
    a, b = body(NEW, temperature=0, model="m"), body(NEW, OLD, temperature=0.7, model="m")
    found = divergence(a, b)
    assert found is not None
    assert (found.member, found.in_prompt) == ("temperature", False)
    assert a[found.a.offset - 1 : found.a.offset + 1] == b"0,"
    assert b[found.b.offset : found.b.offset + 2] == b".7"
    found = divergence(a, body(OLD, temperature=0.7, model="m"))
    assert found is not None
    assert (found.member, found.in_prompt) == (CONTENT, True)


def test_requests_that_do_not_part(tmp_path: Path) -> None:
    session = create(tmp_path)
    for text in ("Hi", "And?", "é"):
        session.extend(group(session, text))
    requests = list(session.requests())
    assert [divergence(a, b) for a in requests for b in requests] == [None] * 9
    last = Prompt(body=requests[1].body.replace(b"And?", b"And!"))
    found = divergence(requests[2], last)
    assert found is not None
    assert (found.member, found.a.changed, found.b.changed) == ("messages[3].content", "?", "!")


def test_messages_are_compared_where_bytes_are_not_known() -> None:
    found = divergence(Prompt(messages=[OLD]), Prompt(messages=[dict(reversed(OLD.items()))]))
    assert found is not None
    assert found.culprit == "key_order"
    with pytest.raises(InvalidConfig, match="reuse"):
        divergence(Prompt(tokens=[1]), Prompt(tokens=[2]))


def test_what_is_no_body_parts_somewhere_too() -> None:
    found = divergence(b"Now: 2026-11-30 07:31:05", b"Now: 2026-11-30 07:31:06")
    assert found is not None
    assert (found.culprit, found.member, found.offset) == ("time", "body", 23)
    assert divergence(b"not", b"not JSON") is None
    found = divergence(b'{"a":"\xff\xfe"}', b'{"a":"\xff\xfd"}')
    assert found is not None
    assert found.culprit == "edited"
    deep = b'{"a":' + b"[" * 100_000
    found = divergence(deep + b"1", deep + b"2")
    assert found is not None
    assert found.member == "body"


def test_sides_are_cut_between_characters() -> None:
    a, b = (body(said("é😀" * 60 + char + "😀é" * 60)) for char in ("é", "è"))
    found = divergence(a, b)
    assert found is not None
    assert found.a == (found.offset, "é😀" * 20, "é", ("😀é" * 60)[:39])
    assert (found.b.changed, found.offset) == ("è", first_difference(a, b))
    alike = divergence(body(said("é")), body(said("ũ")))  # their last bytes are the same
    assert alike is not None
    assert (alike.a.changed, alike.b.changed) == ("é", "ũ")
    far = divergence(body(said("a" * 1000)), body(said("b" * 1000)))
    assert far is not None
    assert (far.a.changed, far.a.after) == ("a" * 40, "")


class Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_reprs_are_one_source_and_escaped() -> None:
    found = divergence(*two("Say <b>one</b>\n & go", "Say <b>two</b>\n & go"))
    assert found is not None
    assert len(repr(found)) <= 110
    assert repr(found).startswith("Divergence edited in messages[0].content: a [one], b [two]")
    page = Cells()
    page.feed(found._repr_html_())
    assert set(page.tags) == {"table", "caption", "tr", "th", "td", "span"}
    assert "Say <b>[one]</b>" in page.text
    lines = str(found).split("\n")
    assert [line[:2] for line in lines[1:]] == ["- ", "+ "]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.text('ab é"\\', max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=500, deadline=None)
@given(st.dictionaries(st.sampled_from(["model", "tools", "x"]), JSON, max_size=2), st.lists(JSON, max_size=4), st.data())
def test_the_offset_is_the_first_byte_that_differs(members: dict[str, Any], messages: list[Any], data: st.DataObject) -> None:
    """Where messages stand last, as loopkit sends them, prompt order is the order of the bytes."""
    a = body(*messages, **members)
    b = body(
        *data.draw(st.just(messages) | st.lists(JSON, max_size=4)),
        **data.draw(st.just(members) | st.fixed_dictionaries({"x": JSON})),
    )
    found = divergence(a, b)
    one, other = a.removesuffix(b"]}"), b.removesuffix(b"]}")
    if one.startswith(other) or other.startswith(one):
        assert found is None
    else:
        assert found is not None
        assert (found.a.offset, found.b.offset) == (first_difference(a, b),) * 2
        assert found.culprit in KINDS


def test_time_grows_with_the_bodies() -> None:
    def taken(size: int) -> float:
        messages = [said(f"{number} " + "words and more words " * 20) for number in range(size)]
        a, b = body(*messages, said("a")), body(*messages, said("b"))
        start = time.perf_counter()
        assert divergence(a, b) is not None
        return time.perf_counter() - start

    taken(100)
    assert min(taken(4_000) / taken(500) for _ in range(5)) < 24, "8 times the bytes"

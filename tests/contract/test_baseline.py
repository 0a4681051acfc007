"""The baseline: a snapshot whose bytes are the same everywhere, and the replay behind it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from loopkit.config import Config
from loopkit.contract.baseline import Baseline, messages
from loopkit.contract.messages import FunctionSchema, ToolSchema, encode_message
from loopkit.contract.records import Assistant, LogRecord, ToolResult, User
from loopkit.errors import BaselineError
from loopkit.ids import SessionId
from loopkit.session.session import Session
from tests.session.build import SERVER, TAGS, TIME, calls, end, group

TAG = "<" + "|" + "im_end" + "|" + ">"  # in pieces, so that no source holds a control tag
FIXTURE = Path(__file__).parents[2] / "data" / "baseline" / "fixture.json"
HASH = "cd6c57aabf5fcd81a15dde1d41d3affe28dab2075ec0aae0fa359eaeab27d305"


class Tools:
    def __init__(self, *tools: ToolSchema) -> None:
        self.tools = tools

    def core_schemas(self) -> Sequence[ToolSchema]:
        return self.tools


def tool(name: str) -> ToolSchema:
    return ToolSchema(function=FunctionSchema(name=name, parameters={"type": "object", "b": 1, "a": 2}))


def test_the_hash_of_the_fixture_is_the_one_that_was_committed() -> None:
    baseline = Baseline.load(FIXTURE)
    assert baseline.hash() == HASH
    assert baseline.to_json() == FIXTURE.read_bytes()
    assert not FIXTURE.read_bytes().endswith(b"\n")


def test_the_fixture_is_made_as_its_script_says() -> None:
    scope: dict[str, object] = {"__name__": "make", "__file__": str(FIXTURE.with_name("make_baseline.py"))}
    exec(FIXTURE.with_name("make_baseline.py").read_text("utf-8"), scope)
    made = scope["fixture"]
    assert callable(made)
    assert made() == Baseline.load(FIXTURE)


def test_another_hash_seed_gives_the_same_bytes() -> None:
    code = f"from loopkit.contract.baseline import Baseline; print(Baseline.load({str(FIXTURE)!r}).hash())"
    for seed in ("0", "1", "77"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            cwd=FIXTURE.parents[2],
        )
        assert run.stdout.strip() == HASH


@given(st.text(st.characters(exclude_categories=["Cs"])), st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=3))
def test_from_json_is_the_inverse_of_to_json(system: str, names: list[str]) -> None:
    baseline = Baseline(system, tuple(tool(name) for name in names))
    assert Baseline.from_json(baseline.to_json()) == baseline
    assert Baseline.from_json(baseline.to_json()).hash() == baseline.hash()


def test_nothing_is_sorted() -> None:
    json = Baseline("s", (tool("z"), tool("a"))).to_json()
    assert json.startswith(
        b'{"system":"s","tools":[{"type":"function","function":{"name":"z","parameters":{"type":"object","b":1'
    )
    assert json.index(b'"z"') < json.index(b'"a"')


def test_assemble(tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_bytes("  Be brief. é\r\n\n \t".encode())
    registry = Tools(tool("z"), tool("a"))
    config = Config(home=tmp_path, system_file=prompt)
    assert Baseline.assemble(config, registry) == Baseline("  Be brief. é", (tool("z"), tool("a")))
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "core.md").write_text("\n\nLima is in Peru.\n\n")
    assert Baseline.assemble(config, None).system == "  Be brief. é\n\nLima is in Peru."
    assert Baseline.assemble(config, None, memory="").system == "  Be brief. é"
    assert Baseline.assemble(config, None, memory=" Own. ").system == "  Be brief. é\n\nOwn."
    assert Baseline.assemble(Config(home=tmp_path), None, memory=" Own. ").system == "Own."
    assert Baseline.assemble(Config(home=tmp_path, system="One.\n"), None, memory="") == Baseline("One.", ())


def test_the_memory_block_is_neutralised_when_the_baseline_is_assembled(tmp_path: Path) -> None:
    tag = TAG
    baseline = Baseline.assemble(Config(home=tmp_path, system=f"Owner {tag}."), None, memory=f"Note {tag}.")
    owner, _, note = baseline.system.partition("\n\n")
    assert (owner == f"Owner {tag}.") is True, "the owner's text was touched (not shown: it may hold a tag)"
    assert (tag in note) is False, "the tag is still in the memory block (not shown: it may hold a tag)"
    assert "&lt;" in note
    again = Baseline.from_json(baseline.to_json())
    assert (again == baseline) is True, "reading changes the text (not shown: it may hold a tag)"


def test_an_old_log_with_a_raw_tag_is_replayed_as_it_is(tmp_path: Path) -> None:
    tag = TAG
    home, id = tmp_path, SessionId("old")
    with Session.create(home, id, Baseline(f"Was {tag}.", ()), slot=None, options={}, server=SERVER, tags=TAGS) as session:
        session.extend(group(session, f"I say {tag}.", f"So {tag}."))
        sent = next(session.requests())
    again = Session.read(home, id)
    replayed = next(again.requests())
    texts = [message.content for message in again.messages()]
    assert (texts == [f"Was {tag}.", f"I say {tag}.", f"So {tag}."]) is True, (
        "replay changed a text (not shown: it may hold a tag)"
    )
    assert (replayed.sha256, replayed.body.count(tag.encode())) == (sent.sha256, 2)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "truncated"),
        (b"\xff", "not UTF-8"),
        (b'\xef\xbb\xbf{"system":"","tools":[]}', ""),
        (b"[]", "Expected `object`"),
        (b'{"system":"","tools":[],"note":1}', "unknown field `note`"),
        (b'{"system":""}', "tools"),
        (b'{"system":1,"tools":[]}', "Expected `str`"),
        (b'{"system":"","tools":[{"type":"function","function":{"name":"f","parameters":{}},"x":1}]}', "unknown field `x`"),
        (
            b'{"system":"","tools":[{"type":"function","function":{"name":"f","parameters":{"a":' + b"[" * 100_000,
            "nested too deep",
        ),
    ],
)
def test_what_is_no_baseline_is_refused_with_the_reason(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "0.baseline.json"
    path.write_bytes(data)
    with pytest.raises(BaselineError) as caught:
        Baseline.load(path)
    assert caught.value.path == str(path)
    assert str(path) in str(caught.value)
    assert why in caught.value.why
    with pytest.raises(BaselineError) as caught:
        Baseline.from_json(data)
    assert caught.value.path is None


def test_what_cannot_be_read_or_encoded_is_named(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="nowhere"):
        Baseline.load(tmp_path / "nowhere")
    with pytest.raises(BaselineError, match="the system prompt cannot be read"):
        Baseline.assemble(Config(home=tmp_path, system_file=tmp_path / "gone.txt"), None)
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"caf\xe9")
    with pytest.raises(BaselineError, match=r"latin\.txt: the system prompt is not UTF-8"):
        Baseline.assemble(Config(home=tmp_path, system_file=latin), None)
    with pytest.raises(BaselineError, match=r"baseline\.system"):
        Baseline("half \ud83d", ()).to_json()
    with pytest.raises(BaselineError, match=r"baseline\.tools\[0\]\.function\.parameters\.n"):
        Baseline("", (ToolSchema(function=FunctionSchema(name="f", parameters={"n": float("nan")})),)).hash()


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
RECORDS = st.lists(
    st.one_of(
        TEXTS.map(lambda text: User(time=TIME, content=text)),
        st.one_of(st.just(UNSET), st.none(), TEXTS).map(lambda text: Assistant(time=TIME, content=text)),
        st.just(Assistant(time=TIME, content=None, tool_calls=calls("a"))),
        TEXTS.map(
            lambda text: ToolResult(time=TIME, call=1, tool_call_id="a", name="f", content=text, truncated=False, status="failed")
        ),
        st.just(end()),
    ),
    max_size=12,
)


@given(RECORDS, st.data())
def test_replay_of_a_prefix_is_a_prefix(records: list[LogRecord], data: st.DataObject) -> None:
    baseline = Baseline("Be brief.", ())
    cut = data.draw(st.integers(0, len(records)))
    whole, part = messages(baseline, records), messages(baseline, records[:cut])
    assert whole[: len(part)] == part
    assert [message.content for message in whole[1:]] == [
        record.content for record in records if isinstance(record, User | Assistant | ToolResult)
    ]
    bytes_whole, bytes_part = (b",".join(encode_message(message) for message in replay) for replay in (whole, part))
    assert bytes_whole.startswith(bytes_part)

"""What comes in, once: sessions, copies of them, records through a pipe or a socket."""

from __future__ import annotations

import io
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from msgspec.structs import replace

from loopkit.contract.provenance import Provenance, Record, Role
from loopkit.contract.records import User
from loopkit.encoding import encode
from loopkit.errors import InvalidConfig, LogError, TornLog
from loopkit.ids import ProjectId, RunId, SessionId
from loopkit.memory.memory import Memory
from loopkit.memory.sources import LONGEST, RefusedLine, listen, read_lines
from tests.memory.make import PERU, TIME, filled, no_orphans, records, rows
from tests.session.build import end, group
from tests.session.build import filled as filled_session

CLAUDE = Path(__file__).parents[2] / "data" / "foreign" / "claude_code"


def texts(memory: Memory) -> list[str]:
    nodes = memory.nodes()
    return list(nodes.loc[nodes["level"] == "L0", "text"])


def test_a_session_comes_in_with_the_byte_offset_of_every_line(tmp_path: Path) -> None:
    session = filled_session(tmp_path)
    memory = Memory(tmp_path)
    found = memory.ingest(session, project=PERU, budget=1)
    assert found.records == found.chunks > 5
    for node in memory.nodes()["sha256"]:
        (evidence,) = memory.trace(node)
        assert evidence.source == f"{session.id}/{Path(str(evidence.path)).stem}"
        assert evidence.line is not None
        line = json.loads(evidence.line)
        data = Path(str(evidence.path)).read_bytes()
        assert data[: evidence.offset].endswith(b"\n")
        assert data[evidence.offset :].startswith(evidence.line.encode() + b"\n")
        kinds = {"user": Role.User, "assistant": Role.Assistant, "tool_result": Role.ToolResult}
        assert kinds[line["kind"]] == evidence.role
        assert line["content"] is None or line["content"] in evidence.text


def test_the_system_prompt_the_reasoning_and_what_is_carried_stay_out(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.ingest(filled_session(tmp_path), project=PERU, budget=1)
    said = texts(memory)
    assert not any("Be brief" in text or "A tool knows" in text for text in said)
    assert sum("Is it light in Lima?" in text for text in said) == 1
    assert any('[calls now_in {"place": "Lima"}]' in text for text in said)
    assert any(text == "Assistant:   Yes, it is.\n" for text in said), "white space stays"


def test_a_summary_that_an_epoch_carries_over_is_no_evidence(tmp_path: Path) -> None:
    session = filled_session(tmp_path)
    session.append(end())
    session.next_epoch(session.baseline, [User(time=TIME, content="Summary: all was said.")], kind="summary")
    session.extend(group(session, "And then?"))
    memory = Memory(tmp_path)
    memory.ingest(session, project=PERU, budget=1)
    assert "User: And then?" in texts(memory)
    assert not any("Summary" in text for text in texts(memory))


@pytest.mark.parametrize("budget", [1, 20, 10_000])
def test_ingesting_a_resumed_or_forked_copy_adds_no_node_twice(budget: int, tmp_path: Path) -> None:
    session = filled_session(tmp_path)
    memory = Memory(tmp_path)
    first = memory.ingest(session, project=PERU, budget=budget)
    truth = (memory.dir / "nodes.jsonl").read_bytes()
    again = memory.ingest(tmp_path, project=PERU, budget=budget)
    assert (again.records, again.known, again.chunks) == (0, first.records + first.known, 0)
    assert (memory.dir / "nodes.jsonl").read_bytes() == truth, "nothing new, nothing written"

    fork = session.fork(1, SessionId("fork"))
    found = memory.ingest(fork, project=PERU, budget=budget)
    assert (found.records, found.chunks) == (0, 0)
    fork.extend(group(fork, "Only in the fork?", "Yes, here."))
    session.extend(group(session, "Resumed and grown?", "Grown."))
    both = memory.ingest(tmp_path, project=PERU, budget=budget)
    assert both.records == 4
    said = "\n\n".join(texts(memory))
    for text in ("Is it light in Lima?", "Only in the fork?", "Resumed and grown?"):
        assert said.count(text) == 1
    assert memory.nodes()["sha256"].is_unique
    no_orphans(memory)
    assert memory.verify().ok


def test_a_copy_under_another_name_in_another_file_is_known(tmp_path: Path) -> None:
    memory = filled(tmp_path)
    copy = [Record(each.role, each.text, each.timestamp, Provenance("copy/7", 5)) for each in records(["Fact 0 of Lima."])]
    assert memory.ingest(copy, project=PERU).known == 1
    without = [Record(Role.User, "Fact 0 of Lima.", None, Provenance("copy/8", at)) for at in (0, 5, 5)]
    found = memory.ingest(without, project=PERU, budget=1)
    assert (found.records, found.known) == (2, 1), "a record without a time is known by where it stands"
    assert len(memory.nodes()) == 6, "the same text is the same node"


@pytest.mark.parametrize("budget", [1, 10_000])
@pytest.mark.parametrize(
    "change", [{"timestamp": None}, {"timestamp": "2027-01-01T00:00:00.000000Z"}, {"role": Role.Assistant}], ids=str
)
def test_the_same_texts_at_the_same_places_are_the_same_records(budget: int, change: dict[str, Any], tmp_path: Path) -> None:
    """A chunk's hash takes in neither time nor role, so a transcript whose lines got new ones is the same evidence."""
    memory, said = Memory(tmp_path), records(["One.", "Two.", "Three."])
    memory.ingest(said[:2], project=PERU, budget=budget)
    again = [replace(each, **change) for each in said]
    found = memory.ingest([*again, *again], project=PERU, budget=budget)
    assert (found.records, found.known) == (1, 5)
    assert len(texts(memory)) == (3 if budget == 1 else 2)
    assert memory.verify().ok
    grown = memory.dump()
    memory.rebuild()
    assert memory.dump() == grown


def test_projects_do_not_share_evidence(tmp_path: Path) -> None:
    memory = filled(tmp_path)
    chile = ProjectId("chile")
    found = memory.ingest(records(["Fact 0 of Lima."]), project=chile)
    assert found.records == 1
    assert len(memory.nodes()) == 7


def test_the_step_counts_on_within_a_run(tmp_path: Path) -> None:
    memory = filled(tmp_path, 3, run="r1")
    memory.ingest(records(["More."], "more"), project=PERU, run=RunId("r1"))
    memory.ingest(records(["Much more."], "much"), project=PERU, run=RunId("r2"))
    assert rows(memory, "SELECT run_id, t FROM chunk ORDER BY seq") == [("r1", 1), ("r1", 2), ("r1", 3), ("r1", 4), ("r2", 1)]


def test_a_source_that_moved_is_traced_to_its_new_place(tmp_path: Path) -> None:
    session = filled_session(tmp_path / "old")
    session.close()
    memory = Memory(tmp_path)
    memory.ingest(session, project=PERU)
    os.rename(tmp_path / "old", tmp_path / "new")
    (node,) = memory.recall("Cusco", 1)
    assert all(each.line is None for each in memory.trace(node.node))
    memory.ingest(tmp_path / "new", project=PERU)
    evidence = memory.trace(node.node)
    assert all(str(each.path).startswith(str(tmp_path / "new")) and each.line for each in evidence)
    assert memory.verify().ok


def test_what_holds_no_transcript_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="the path does not exist"):
        Memory(tmp_path).ingest(tmp_path / "nowhere", project=PERU)
    session = filled_session(tmp_path)
    session.close()
    path = session.dir / "0.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    filled_session(tmp_path, "a-sound-one").close()
    memory = Memory(tmp_path)
    with pytest.raises(TornLog):
        memory.ingest(tmp_path, project=PERU)
    assert len(memory.recall("Cusco", 9)) == 1, "what was read before it is kept"


def claude_code(session: str, texts: list[str]) -> bytes:
    """A transcript; a line of each person's message, one of each answer."""
    lines, parent = [], None
    for at, text in enumerate(texts):
        role = "assistant" if at % 2 else "user"
        content = [{"type": "text", "text": text}] if at % 2 else text
        message = {"role": role, "content": content, **({"id": f"m{at}", "model": "x"} if at % 2 else {})}
        line = {
            "parentUuid": parent,
            "sessionId": session,
            "type": role,
            "uuid": f"u{at}",
            "timestamp": f"2026-11-30T07:31:{at:02}Z",
        }
        lines.append(json.dumps({**line, "message": message}) + "\n")
        parent = f"u{at}"
    return "".join(lines).encode()


def test_another_tools_log_comes_in_and_its_resumed_copy_adds_what_is_new(tmp_path: Path) -> None:
    folder = tmp_path / "projects"
    folder.mkdir()
    said = ["Is it light?", "Until six.", "And in Cusco?", "Until six as well."]
    (folder / "one.jsonl").write_bytes(claude_code("one", said[:2]))
    (folder / "settings.json").write_bytes(b"{}")
    memory = Memory(tmp_path / "runs")
    assert memory.ingest(folder / "one.jsonl", project=PERU, budget=1).records == 2
    (folder / "two.jsonl").write_bytes(claude_code("two", said))
    found = memory.ingest(folder, project=PERU, budget=1)
    assert (found.records, found.known) == (2, 4)
    assert texts(memory) == [
        "User: Is it light?",
        "Assistant: Until six.",
        "User: And in Cusco?",
        "Assistant: Until six as well.",
    ]
    (evidence,) = memory.trace(memory.recall("Cusco")[0].node)
    assert evidence.source == "two"
    data = (folder / "two.jsonl").read_bytes()
    assert evidence.path == str(folder / "two.jsonl")
    assert evidence.line is not None
    assert data[evidence.offset :].startswith(evidence.line.encode())
    assert json.loads(evidence.line)["message"]["content"] == said[2]
    assert memory.verify().ok


GOOD = encode(Record(Role.User, "It is light.\u2028\u0085", TIME, Provenance("pipe", 7)))
BAD = [
    b"",
    b"{}",
    b"not json",
    b"\xff\xfe",
    b"[" * 100_000,
    GOOD.replace(b"User", b"user"),
    GOOD.replace(b'"text"', b'"txet"'),
    GOOD.replace(b"}}", b'},"more":1}'),
    GOOD.replace(b"7}", b"-1}"),
    GOOD.replace(b"7}", b"%d}" % (1 << 63)),
    GOOD.replace(b'"pipe"', b'""'),
    GOOD.replace(b"light.", b"light\\ud800"),
    GOOD.replace(TIME.encode(), b"yesterday"),
]


def test_a_bad_line_is_refused_with_its_number_and_the_others_are_taken() -> None:
    data = b"".join(GOOD + b"\n" + bad + b"\n" for bad in BAD) + GOOD
    refused: list[RefusedLine] = []
    taken = list(read_lines(io.BytesIO(data), refused.append))
    assert [record.text for record in taken] == ["It is light.\u2028\u0085"] * (len(BAD) + 1)
    assert [each.line for each in refused] == [2 * at for at in range(1, len(BAD) + 1)]
    assert all(each.why and len(str(each)) < 500 for each in refused)


def test_a_line_without_end_is_refused_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LONGEST > 100 << 19
    monkeypatch.setattr("loopkit.memory.sources.LONGEST", 1000)
    refused: list[RefusedLine] = []
    data = GOOD + b"\n" + b"x" * 5000 + b"\n" + GOOD + b"\n"
    assert len(list(read_lines(io.BytesIO(data), refused.append))) == 2
    assert [each.line for each in refused] == [2]


def test_records_come_in_through_a_socket(tmp_path: Path) -> None:
    memory, path = Memory(tmp_path), tmp_path / "memory.sock"

    def take(stream: BinaryIO) -> dict[str, object]:
        refused: list[int] = []
        found = memory.ingest(read_lines(stream, lambda each: refused.append(each.line)), project=PERU, budget=1)
        if b"last" in memory.dump():
            listening.append(False)
        return {"taken": found.records, "refused": refused}

    listening: list[bool] = []

    class Done(Exception):
        pass

    def serve() -> None:
        def until_last(stream: BinaryIO) -> object:
            answer = take(stream)
            if listening:
                raise Done
            return answer

        with pytest.raises(Done):
            list(listen(path, until_last))

    thread = threading.Thread(target=serve)
    thread.start()
    while not path.exists():
        assert thread.is_alive()

    def send(data: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            return client.makefile("rb").read()

    while True:
        try:
            answer = send(GOOD + b"\nbad\n" + GOOD.replace(b"7}", b"8}") + b"\n")
            break
        except ConnectionRefusedError:  # bound and not listening yet
            continue
    assert json.loads(answer) == {"taken": 1, "refused": [2]}
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    with pytest.raises(InvalidConfig, match="cannot create a socket"):
        list(listen(path, take))
    assert path.exists()
    send(GOOD.replace(b"It is light.", b"The last one."))
    thread.join()
    assert not path.exists()
    assert len(memory.nodes()) == 2


def damaged(home: Path) -> tuple[Path, Path]:
    """A directory of transcripts of which the first is torn, and a home of two sessions of which the first is."""
    logs = home / "logs"
    logs.mkdir()
    sound = (CLAUDE / "told_in_lines.jsonl").read_bytes()
    (logs / "a.jsonl").write_bytes(sound + b'{"torn\n')
    (logs / "b.jsonl").write_bytes((CLAUDE / "lost.jsonl").read_bytes())
    torn = filled_session(home)
    path = torn.dir / "0.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    filled_session(home, "oslo")
    return logs, torn.dir


@pytest.mark.parametrize("which", [0, 1])
def test_a_damaged_file_hides_no_other_where_it_is_to_be_reported(tmp_path: Path, which: int) -> None:
    where = damaged(tmp_path)[which]
    with pytest.raises(TornLog):
        Memory(tmp_path / "raised").ingest(where if which == 0 else tmp_path, project=PERU)
    memory = Memory(tmp_path)
    found = memory.ingest(where if which == 0 else tmp_path, project=PERU, errors="report")
    torn = [problem for problem in found.problems if problem.kind == "torn"]
    assert len(torn) == 1
    assert torn[0].line is not None
    assert torn[0].path.startswith(str(where))
    if which == 0:
        alone = Memory(tmp_path / "alone")
        whole = [alone.ingest(path, project=PERU).records for path in (CLAUDE / "told_in_lines.jsonl", CLAUDE / "lost.jsonl")]
        assert found.records == sum(whole) > 0, "all that is sound, of both files"
    else:
        alone = Memory(tmp_path / "alone")
        assert found.records == alone.ingest(tmp_path / "sessions" / "oslo", project=PERU).records > 0


def test_another_word_for_errors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="it must be 'raise' or 'report'; got 'ignore'"):
        Memory(tmp_path).ingest([], project=PERU, errors="ignore")  # type: ignore[arg-type]

"""The tiny model on the real server: what it says, which tool it takes, and what stays cached, as numbers."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from loopkit.server.embedded.models import ModelFile, resolve
from loopkit.server.embedded.process import Child, start_child
from loopkit.server.embedded.templates import tiny_template
from tests.server.asking import NOW_IN, STRING, Answer, client, tool, user

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelFile]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield resolve("tiny")


@pytest.fixture(scope="module")
def child(tiny: ModelFile) -> Iterator[Child]:
    started = start_child(tiny, context=8192)
    yield started
    started.close()


@pytest.fixture
def http(child: Child) -> Iterator[httpx.Client]:
    with client(child) as opened:
        for slot in range(2):
            assert opened.post(f"/slots/{slot}?action=erase").status_code == 200
        yield opened


def test_a_conversation_is_cached_to_its_last_token_but_one(http: httpx.Client) -> None:
    messages = [{"role": "system", "content": "Be brief."}, user("What is the time in Lima?")]
    first = Answer(http, messages, tools=[NOW_IN])
    assert first.cached == 0
    assert first.calls == [("now_in", '{"place": "."}')]
    messages += [first.message, {"role": "tool", "tool_call_id": first.message["tool_calls"][0]["id"], "content": "12:00"}]
    second = Answer(http, messages, tools=[NOW_IN])
    assert second.message["content"] == "Done."
    assert second.cached == first.prompt + first.completion - 1
    messages += [second.message, user("Thanks.")]
    third = Answer(http, messages, tools=[NOW_IN])
    assert third.cached == second.prompt + second.completion - 1
    again = Answer(http, messages, tools=[NOW_IN])
    assert again.prompt - again.cached == 1


def test_one_byte_is_one_token(http: httpx.Client) -> None:
    text = "Größe: 3 µm\t\x7f日本\n"
    tokens = http.post("/tokenize", json={"content": text}).json()["tokens"]
    assert [token - 3 for token in tokens] == list(text.encode())


def test_without_tools_or_question_it_answers(http: httpx.Client) -> None:
    for messages, more in (
        ([user("Is it?")], {}),
        ([user("It is.")], {"tools": [NOW_IN]}),
        ([user("? no")], {"tools": [NOW_IN]}),
    ):
        answer = Answer(http, messages, **more)
        assert (answer.message["content"], answer.calls) == ("Done.", [])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (STRING, "."),
        ({"type": "integer"}, 0),
        ({"type": "number"}, 0),
        ({"type": "boolean"}, False),
        ({"type": "array", "items": STRING}, []),
        ({"type": "object", "properties": {"a": STRING}}, {}),
        ({"type": "string", "minLength": 3}, "..."),
    ],
)
def test_arguments_are_the_shortest_that_are_valid(http: httpx.Client, kind: dict[str, Any], value: object) -> None:
    [(name, arguments)] = Answer(http, [user("Go?")], tools=[tool("go", {"it": kind}, more=STRING)]).calls
    assert (name, arguments) == ("go", json.dumps({"it": value}))


@pytest.mark.parametrize(
    "names",
    [
        ("read_file", "read_dir"),
        ("read_dir", "read_file"),
        ("read", "read_file"),
        ("read_file", "read"),
        ("z", "a", "b"),
        ("a", "z"),
    ],
)
def test_among_several_tools_it_takes_the_first_listed(http: httpx.Client, names: tuple[str, ...]) -> None:
    answer = Answer(http, [user("Go?")], tools=[tool(name, {"path": STRING}) for name in names])
    assert answer.calls == [(names[0], '{"path": "."}')]


def test_it_takes_the_first_of_any_tools(http: httpx.Client) -> None:
    # also at the server's own temperature; but for names that hold a pair of characters twice
    chance = random.Random(5)
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
    for _ in range(20):
        stem = "".join(chance.choices(letters, k=chance.randrange(5)))
        names = {stem + "".join(chance.choices(letters, k=chance.randrange(1, 12))) for _ in range(chance.randrange(2, 7))}
        listed = chance.sample(sorted(names), len(names))
        if len(set(itertools.pairwise(listed[0]))) < len(listed[0]) - 1:
            continue
        question = "What, now? " * chance.randrange(1, 100) + "Then?"
        answer = Answer(http, [user(question)], tools=[tool(name, {"a": STRING}) for name in listed])
        assert answer.calls == [(listed[0], '{"a": "."}')], listed


@pytest.mark.parametrize("first", ["", *"Qaz_Z09-"])
def test_a_name_never_gets_into_an_argument(http: httpx.Client, first: str) -> None:
    name = first + "Qz"
    answer = Answer(http, [user("Go?")], tools=[tool(name, {"a": STRING, "b": STRING}), tool("other", {"a": STRING})])
    assert answer.calls == [(name, '{"a": ".", "b": "."}')]


def test_a_template_that_writes_arguments_anew_costs_the_cache(tiny: ModelFile) -> None:
    started = start_child(tiny, template=tiny_template(reserialise=True))
    with client(started) as http:
        messages = [user("What is the time in Lima?")]
        first = Answer(http, messages, tools=[NOW_IN])
        result = {"role": "tool", "tool_call_id": first.message["tool_calls"][0]["id"], "content": "12:00"}
        second = Answer(http, [*messages, first.message, result], tools=[NOW_IN])
    started.close()
    # it parts behind `"place":`, where the model wrote a blank: ` "."}}`, the closing mark and the end are read again
    assert first.prompt + first.completion - 1 - second.cached == len(' "."}}') + 1
    assert second.prompt > first.prompt


@pytest.mark.parametrize("name", ["tiny", "tiny-swa", "tiny-hybrid"])
def test_the_sisters_differ_in_what_they_remember(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    started = start_child(resolve(name), slots=1, cache_ram_mib=0, n_ubatch=64)
    with client(started) as http:
        first = Answer(http, [user("a" * 600)])
        assert first.message["content"] == "Done."
        longer = Answer(http, [user("a" * 600), first.message, user("b")])
        assert longer.cached == first.prompt + first.completion - 1
        edited = Answer(http, [user("a" * 100 + "c" * 500), first.message, user("b")])
    started.close()
    same = len("_user\n") + 100  # one control token, the role, and what the edit left
    # one state, or a window that has moved on, cannot be cut back to there
    assert edited.cached == same if name == "tiny" else edited.cached < same

"""What a server says of its tokens: on the real one with every tiny model, and on scripted ones of vLLM's shape and of none."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopkit.contract.request import Request
from loopkit.encoding import decode, encode
from loopkit.engines.evidence.tokens import Run, TokenView
from loopkit.errors import ServerRefused, ServerUnreachable
from loopkit.server import llama_api
from loopkit.server.client import Server
from loopkit.server.embedded.models import resolve
from loopkit.server.embedded.templates import CALL, END, START, TOOL, hermes_template, tiny_template
from loopkit.server.opening import connect, serve
from loopkit.server.prompt import attribution
from loopkit.server.prompt.token_view import _offsets
from tests.server import conversations
from tests.server.scripted import Scripted, Step, answer

BODY = b'{"messages":[{"role":"user","content":"Hi."}]}'


def prompt_tokens(server: Server, body: bytes) -> int:
    """The server's own count."""
    return int(decode(server.wire.ask(f"{server.url}/v1/chat/completions", body))["usage"]["prompt_tokens"])


def view_of(server: Server, body: bytes) -> TokenView:
    view = server.tokens(body)
    assert view is not None
    return view


def spelled(view: TokenView) -> list[tuple[str, str]]:
    """Each stretch and its text; the tags of ChatML by short names."""
    assert view.parts is not None
    texts = [(run.label, (view.spelled(run.start, run.end) or b"").decode()) for run in view.parts]
    return [(label, text.replace(START, "(").replace(END, ")")) for label, text in texts]


def check(server: Server, body: dict[str, Any]) -> None:
    """Count, bytes and parts of one request, against the server and the body."""
    __tracebackhide__ = True
    data = encode(body)
    view = view_of(server, data)
    assert view.checked(prompt_tokens(server, data)).exact, "the count is not the server's"
    assert view.prompt is not None
    assert view.offsets is not None
    assert view.parts is not None
    prompt = view.prompt.encode()
    assert b"".join(view.spelled(i, i + 1) or b"" for i in range(len(view))) == prompt, "the tokens do not spell the prompt"
    assert [run.start for run in view.parts] == [0, *(run.end for run in view.parts[:-1])], "the parts have gaps"
    assert view.parts[-1].end == len(view), "the parts end too early"
    mask = attribution.mask(data)
    runs = attribution.runs(prompt, llama_api.apply_template(server.wire, mask.body).encode(), mask)
    owner = [run.label for run in runs for _ in range(run.start, run.end)]
    wrong = [i for i in range(len(view)) if view.part_at(i) != owner[view.offsets[i]]]
    assert wrong == [], f"tokens that are not of the part in which they begin: {wrong}"
    texts: dict[str, bytes] = {}
    for run in runs:
        texts[run.label] = texts.get(run.label, b"") + prompt[run.start : run.end]
    wanted = conversations.texts_of(body)
    for label, text in wanted.items():
        got = texts.get(label, b"").decode()
        same = decode(got) == decode(text) if label.endswith("arguments") else got == text
        assert same, f"{label}: {len(got)} characters for {len(text)} (not shown: they may hold a tag)"
    tools = {f"tools[{place}]" for place in range(len(body.get("tools", ())))}
    assert set(texts) - {"template"} == set(wanted) | tools


SERVERS = {
    "tiny": ("tiny", None, 80),
    "tiny, arguments anew": ("tiny", tiny_template(reserialise=True), 40),
    "tiny, Hermes": ("tiny", hermes_template(), 30),
    "tiny-tags": ("tiny-tags", None, 40),
    "tiny-swa": ("tiny-swa", None, 20),
    "tiny-hybrid": ("tiny-hybrid", None, 20),
    "smollm2": ("smollm2", None, 4),
}


SLOW = pytest.param("smollm2", marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=[*[name for name in SERVERS if name != "smollm2"], SLOW])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[Server, int]]:
    model, template, examples = SERVERS[request.param]
    with serve(model, slots=1, context=8192, template=template) as server:
        yield server, examples


@pytest.mark.server
def test_random_conversations_are_counted_and_tied(served: tuple[Server, int]) -> None:
    server, examples = served

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(conversations.bodies())
    def tied(body: dict[str, Any]) -> None:
        check(server, body)

    tied()


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str | None, *arguments: Any, **more: Any) -> dict[str, Any]:
    function = [{"name": "look", "arguments": each} for each in arguments]
    calls = [{"id": f"call{at}", "type": "function", "function": each} for at, each in enumerate(function)]
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {}), **more}


def result(content: str, call: int) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": f"call{call}"}


A, U = ("template", ")\n(assistant:\n"), ("template", ")\n(user\n")
FIRST = ("template", "(user\n")


@pytest.mark.server
@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"messages": [user("a")], "reasoning_format": "none"}, [FIRST, ("messages[0].content", "a"), A]),
        ({"messages": [user("")]}, [("template", "(user\n)\n(assistant:\n")]),
        ({"messages": [user("a")], "add_generation_prompt": False}, [FIRST, ("messages[0].content", "a"), ("template", ")\n")]),
        (
            {"messages": [user("a"), assistant("a")]},  # a beginning of the answer
            [FIRST, ("messages[0].content", "a"), A, ("messages[1].content", "a")],
        ),
        (
            {"messages": [user([{"type": "text", "text": "a"}, {"type": "text", "text": "a"}])]},
            [FIRST, ("messages[0].content[0].text", "a"), ("template", "\n"), ("messages[0].content[1].text", "a"), A],
        ),
        (
            {"messages": [{"role": "developer", "content": "a"}, user("\0é")]},
            [("template", "(system\n"), ("messages[0].content", "a"), U, ("messages[1].content", "\0é"), A],
        ),
    ],
)
def test_other_kinds_of_requests(tiny: Server, members: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    body = encode({"max_tokens": 1, **members})
    view = view_of(tiny, body)
    assert spelled(view) == expected
    assert view.checked(prompt_tokens(tiny, body)).exact


@pytest.mark.server
def test_tools_and_calls_stretch_by_stretch(tiny: Server) -> None:
    tools = [conversations.tool("look", ""), conversations.tool("e", "{")]
    messages = [user("e"), assistant(None, {"q": 1}, "[1, 2]", '{"a":1.0}'), *(result("e", call) for call in range(3))]
    stretches = spelled(view_of(tiny, encode({"tools": tools, "messages": messages})))
    assert [label for label, _ in stretches if label.startswith("tools")] == ["tools[0]"] * 2 + ["tools[1]"] * 2
    named = [("template", TOOL), ("tools[1]", '{"name": "e"}')]
    assert all(each in stretches for each in named)
    whole = [decode(text) for label, text in stretches if label.startswith("tools")]
    assert [whole[1], whole[3]] == tools
    at = stretches.index(("messages[0].content", "e"))
    name, arguments = (
        [f"messages[1].tool_calls[{place}].function.{each}" for place in range(3)] for each in ("name", "arguments")
    )
    assert stretches[at + 1 : at + 11] == [
        ("template", f')\n(assistant\n{CALL}{{"name": "'),
        (name[0], "look"),
        ("template", '", "arguments": '),
        (arguments[0], '{"q": 1}'),
        ("template", "}" + CALL.replace("<", "</") + CALL + '{"name": "'),
        (name[1], "look"),
        # arguments that are no object are not looked for
        ("template", '", "arguments": [1, 2]}' + CALL.replace("<", "</") + CALL + '{"name": "'),
        (name[2], "look"),
        ("template", '", "arguments": '),
        (arguments[2], '{"a": 1}'),
    ]


OPENING = "{%- for m in messages %}{{ '" + START + "' + m.role + '\\n' }}"
CLOSING = "{{ '" + END + "\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '" + START + "assistant\\n' }}{%- endif %}"


def each(text: str) -> str:
    return OPENING + text + CLOSING


TEMPLATES = {
    "an answer's thought is cut out": (
        each(
            "{%- if m.role == 'assistant' and '[/t]' in m.content %}{{ m.content.split('[/t]')[-1].lstrip('\\n') }}"
            "{%- else %}{{ m.content }}{%- endif %}"
        ),
        [user("a"), assistant("why[/t]\n\na"), user("a"), assistant("a[/t]"), user("a"), assistant("a[/t]\na"), user("a")],
        ["0.content a", "1.content a", "2.content a", "4.content a", "5.content a", "6.content a"],
    ),
    "reasoning is written": (
        each("{%- if m.reasoning_content %}{{ '[t]' + m.reasoning_content.strip() + '[/t]' }}{%- endif %}{{ m.content }}"),
        [user("a"), assistant("a", reasoning_content="\na\n"), user("a"), assistant("", reasoning_content="b"), user("a")],
        ["0.content a", "1.reasoning_content a", "1.content a", "2.content a", "3.reasoning_content b", "4.content a"],
    ),
    "all is trimmed": (
        each("{{ m.content | trim }}"),
        [user(" a\n"), assistant("  "), user(" a\n"), assistant("a\n"), user("\n")],
        ["0.content a", "2.content a", "3.content a"],
    ),
    "results are JSON strings": (
        each("{%- if m.role == 'tool' %}{{ m.content | tojson }}{%- else %}{{ m.content }}{%- endif %}"),
        [user("a"), assistant("a", "{}", "{}"), result('"a"\n', 0), result("\\é", 1)],
        ["0.content a", "1.content a", '2.content \\"a\\"\\n', "3.content \\\\é"],
    ),
    "a word switches what stands behind each answer": (
        "{%- set q = messages[0].content.endswith('/q') %}"
        + each("{{ m.content }}{%- if q and m.role == 'assistant' %}{{ '(quiet)' }}{%- endif %}"),
        [user("a /q"), assistant("b"), user("c"), assistant("b"), user("b")],
        ["0.content a /q", "1.content b", "2.content c", "3.content b", "4.content b"],
    ),
    "arguments are written one by one": (
        each(
            "{{ m.content }}{%- for c in m.tool_calls or [] %}{{ '[' + c.function.name + ']' }}"
            "{%- for k, v in c.function.arguments | items %}{{ k + '=' + v | string + ';' }}{%- endfor %}"
            "{{ '[/call]' }}{%- endfor %}"
        ),
        [user("a"), assistant("b", '{"k": "v", "l": 2}', "{}"), result("r", 0), result("r", 1), user("end")],
        [
            "0.content a",
            "1.content b",
            "1.tool_calls[0].function.name look",
            # attributed to the message only: the bytes between are not told apart
            "1 k=v;l=2;[/call][look][/call])\n(tool\n",
            "2.content r",
            "3.content r",
            "4.content end",
        ],
    ),
    "the text is another one": (each("{{ 'x' }}"), [user("a"), assistant("b"), user("c")], []),
}


@pytest.mark.server
@pytest.mark.parametrize("case", TEMPLATES)
def test_what_templates_do_to_texts(case: str) -> None:
    template, messages, expected = TEMPLATES[case]
    with serve("tiny", slots=1, template=template) as server:
        body = encode({"max_tokens": 1, "messages": messages})
        view = view_of(server, body)
        assert view.checked(prompt_tokens(server, body)).exact
    texts = [
        f"{label.removeprefix('messages[').replace(']', '', 1)} {text}" for label, text in spelled(view) if label != "template"
    ]
    assert texts == expected


@pytest.mark.server
def test_a_first_token_that_no_template_writes_is_counted(tmp_path: Path) -> None:
    data, key = bytearray(resolve("tiny").path.read_bytes()), b"tokenizer.ggml.add_bos_token"
    data[data.index(key) + len(key) + 4] = 1
    file = tmp_path / "first.gguf"
    file.write_bytes(data)
    with serve(file, slots=1) as server:
        view = view_of(server, BODY)
        assert view.checked(prompt_tokens(server, BODY)).exact
        assert server.count_tokens(Request.of(BODY)) == len(view)
    assert view.offsets is not None
    assert (view.tokens[0], view.offsets[1], view.part_at(0)) == (0, 0, "template")
    assert ("messages[0].content", "Hi.") in spelled(view)


@pytest.mark.server
def test_a_long_conversation_takes_three_questions(tiny: Server) -> None:
    asked: list[str] = []
    ask = tiny.wire.ask
    body = encode({"messages": [user("ok"), assistant("ok")] * 50 + [user("ok")]})

    def counted(url: str, body: bytes, **more: Any) -> bytes:
        asked.append(url.rpartition("/")[2])
        return ask(url, body, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny.wire, "ask", counted)
        view = view_of(tiny, body)
    assert sorted(asked) == ["apply-template", "apply-template", "tokenize"]
    assert [text for label, text in spelled(view) if label != "template"] == ["ok"] * 101


@pytest.mark.server
def test_what_the_server_refuses_is_an_error(tiny: Server) -> None:
    with pytest.raises(ServerRefused, match="Failed to parse tool call arguments"):
        tiny.tokens(encode({"messages": [assistant("", "{"), user("a")]}))


def scripted(engine: str | None, *responses: list[Step]) -> tuple[Scripted, Server]:
    """A server that says it is vLLM and answers as scripted, and what asks it, which may take it for another."""
    models = answer(encode({"data": [{"id": "m", "owned_by": "vllm"}]}))
    listener = Scripted([models, answer('{"version":"0.33.0"}'), *responses])
    server = connect(listener.url)
    assert server.engine == "vllm"
    server.engine = engine
    return listener, server


def test_vllm_gives_tokens_without_parts() -> None:
    listener, server = scripted("vllm", answer('{"count":3,"max_model_len":64,"tokens":[5,6,70000],"token_strs":null}'))
    body = (
        b'{"model":"m","stream":true,"temperature":0.50,"tools":[{"n":1.10}],"chat_template_kwargs":{"a":1},'
        b'"messages":[{"role":"user","content":"\xc3\xa9"}]}'
    )
    with listener, server:
        view = view_of(server, body)
    assert (list(view.tokens), view.prompt, view.offsets, view.parts) == ([5, 6, 70000], None, None, None)
    assert (view.part_at(2), view.spelled(0, 1)) == (None, None)
    assert repr(view.checked(3)) == "TokenView(3 tokens, no parts, count exact)"
    asked = listener.requests[-1]
    assert asked.line.startswith("POST /tokenize ")
    assert asked.body == (
        b'{"add_generation_prompt":true,"model":"m","messages":[{"role":"user","content":"\xc3\xa9"}],'
        b'"tools":[{"n":1.10}],"chat_template_kwargs":{"a":1}}'
    )


@pytest.mark.parametrize("status", [404, 405, 501])
@pytest.mark.parametrize("engine", ["vllm", "llama.cpp"])
def test_none_where_there_is_no_endpoint(engine: str, status: int) -> None:
    listener, server = scripted(engine, answer("no", status))
    with listener, server:
        assert server.tokens(BODY) is None


@pytest.mark.parametrize("engine", ["sglang", "ollama", None])
def test_none_where_nothing_is_known_to_be_asked(engine: str | None) -> None:
    listener, server = scripted(engine)
    with listener, server:
        before = len(listener.requests)
        assert server.tokens(BODY) is None
        assert len(listener.requests) == before


@pytest.mark.parametrize(
    ("engine", "response", "message"),
    [
        ("vllm", answer("no key", 401), "HTTP 401"),
        ("vllm", answer('{"error":{"message":"too long"}}', 400), "too long"),
        ("vllm", answer('{"tokens":["a"]}'), "unexpected response to /tokenize"),
        ("llama.cpp", answer("<html>"), "unexpected response to /apply-template"),
    ],
)
def test_other_faults_are_errors(engine: str, response: list[Step], message: str) -> None:
    listener, server = scripted(engine, response)
    with listener, server, pytest.raises(ServerRefused, match=message):
        server.tokens(BODY)


def test_a_body_that_is_none_is_said() -> None:
    listener, server = scripted("vllm")
    with listener, server, pytest.raises(ServerRefused, match="the body is not a JSON object"):
        server.tokens(b"[]")


def test_a_server_that_is_gone_is_an_error() -> None:
    listener, server = scripted("vllm")
    listener.close()
    with server, pytest.raises(ServerUnreachable):
        server.tokens(BODY)


def pieces(*texts: str | list[int]) -> list[Step]:
    return answer(encode({"tokens": [{"id": at, "piece": text} for at, text in enumerate(texts)]}))


def test_tokens_are_known_where_the_template_refuses_other_texts() -> None:
    listener, server = scripted("llama.cpp", answer('{"prompt":"Hi."}'), pieces("Hi", "."), answer("only Hi.", 400))
    with listener, server:
        view = view_of(server, BODY)
    assert (len(view), view.spelled(1, 2), view.parts, view.part_at(0)) == (2, b".", None, None)


def test_tokens_that_do_not_spell_the_prompt_are_counted_only() -> None:
    listener, server = scripted("llama.cpp", answer('{"prompt":"ﬁne"}'), pieces("f", "i", "n", "e"))
    with listener, server:
        view = view_of(server, BODY)
    assert (len(view), view.prompt, view.offsets, view.parts) == (4, "ﬁne", None, None)


@pytest.mark.parametrize(
    ("prompt", "tokens", "offsets"),
    [
        ("", [], [0]),
        ("a€b", [b"a", b"\xe2", b"\x82\xac", b"b"], [0, 1, 2, 4, 5]),
        ("ab", [b"[first]", b"a", b"b", b"[last]"], [0, 0, 1, 2, 2]),
        ("a b", [b" a", b" b"], [0, 1, 3]),  # a blank before the first
        ("[u]\n\na", [b"[u]", b"a"], [0, 5, 6]),  # white space taken by a tag
        ("a\U00040000b", [b"a", b"\x80", b"\x80", b"\x80", b"b"], [0, 2, 3, 4, 5, 6]),  # a byte that is not known
        ("abc", [b"a", b"b"], None),
        ("abc", [b"a", b"x", b"c"], None),
        ("a" + " " * 17 + "b", [b"a", b"b", b""], None),
    ],
)
def test_tokens_are_laid_along_the_prompt(prompt: str, tokens: list[bytes], offsets: list[int] | None) -> None:
    found = _offsets(prompt.encode(), tokens)
    assert (None if found is None else list(found)) == offsets


ids = st.lists(st.sampled_from([0, 1, 255, 256, 65536, 1 << 24]), max_size=40)


@given(ids, ids, ids)
def test_common_prefix_is_that_of_the_ids(shared: list[int], left: list[int], right: list[int]) -> None:
    a, b = shared + left, shared + right
    longest = next((at for at, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    assert TokenView(array("i", a)).common_prefix(TokenView(array("i", b))) == longest


def test_what_a_view_says_of_itself() -> None:
    view = TokenView(array("i", [1, 2, 3]), "abc", array("i", [0, 1, 2, 3]), (Run("template", 0, 1), Run("tools[0]", 1, 3)))
    assert [view.part_at(index) for index in range(3)] == ["template", "tools[0]", "tools[0]"]
    assert view.spelled(1, 3) == b"bc"
    for index in (-1, 3):
        with pytest.raises(IndexError, match=f"token {index} of 3"):
            view.part_at(index)
    assert [view.exact, view.checked(3).exact, view.checked(2).exact, view.checked(None).exact] == [None, True, False, None]
    assert repr(view) == "TokenView(3 tokens, 2 parts, count not checked)"
    assert repr(view.checked(4)) == "TokenView(3 tokens, 2 parts, count not the server's)"
    with pytest.raises(AttributeError):
        view.exact = True  # type: ignore[misc]

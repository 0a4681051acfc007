"""What a template alone loses: on the real server with templates that keep, re-serialise, drop and refuse."""

from __future__ import annotations

import pytest

from loopkit.cache.templates import KINDS, template_matrix
from loopkit.engines.evidence.tokens import TokenView
from loopkit.errors import ServerRefused
from loopkit.server.client import Server
from loopkit.server.embedded.templates import tiny_template
from loopkit.server.opening import serve
from tests.lab.injections import DROPS_REASONING


@pytest.mark.server
def test_a_template_that_keeps_loses_what_it_never_shows(tiny: Server) -> None:
    rows = {row.kind: row for row in template_matrix(tiny).rows}
    assert set(rows) == set(KINDS)
    kept = ["plain", "tool call", "text and tool call", "parallel calls"]
    assert [(rows[kind].lost_tokens, rows[kind].how) for kind in kept] == [(0, "kept")] * 4
    freely = rows["tool call, arguments spelled freely"]
    assert (freely.how, freely.where) == ("rewritten", "messages[2].tool_calls[0].function.arguments")
    for kind in ("reasoning", "reasoning and tool call"):
        assert (rows[kind].how, rows[kind].where) == ("dropped", "messages[2].reasoning_content")
        assert (rows[kind].lost_tokens or 0) > 0


@pytest.mark.server
@pytest.mark.parametrize(
    ("template", "kind", "how", "where"),
    [
        (tiny_template(reserialise=True), "tool call", "rewritten", "messages[2].tool_calls[0].function.arguments"),
        (DROPS_REASONING, "reasoning and tool call", "parts", "messages[2]"),
    ],
)
def test_others_lose_at_their_kind_of_turn(template: str, kind: str, how: str, where: str) -> None:
    with serve("tiny", slots=1, template=template) as server:
        matrix = template_matrix(server)
    rows = {row.kind: row for row in matrix.rows}
    assert (rows["plain"].lost_tokens, rows["plain"].how) == (0, "kept")
    assert (rows[kind].how, rows[kind].where) == (how, where)
    assert (rows[kind].lost_tokens or 0) > 0
    assert any(line.startswith(kind + " ") and line.endswith(f"{how} at {where}") for line in str(matrix).splitlines())


class Refusing:
    """A server whose template takes no results of tools."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def tokens(self, request: bytes) -> TokenView | None:
        if b'"role":"tool"' in request:
            raise ServerRefused("http://here", 500, "the template raised", "")
        return self._server.tokens(request)


class Silent:
    """A server that shows no tokens."""

    def tokens(self, request: bytes) -> TokenView | None:
        return None


@pytest.mark.server
def test_a_refusal_is_told_where_it_came(tiny: Server) -> None:
    rows = {row.kind: row for row in template_matrix(Refusing(tiny)).rows}
    assert (rows["plain"].how, rows["tool call"].how, rows["tool call"].lost_tokens) == ("kept", "refused", None)
    assert rows["tool call"].where == "messages[3]"


def test_what_a_server_does_not_say_is_not_called_kept() -> None:
    matrix = template_matrix(Silent())
    assert {(row.how, row.lost_tokens) for row in matrix.rows} == {("unknown", None)}
    assert "plain ?" in repr(matrix)
    assert "plain" in matrix._repr_html_()

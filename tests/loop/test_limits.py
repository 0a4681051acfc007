"""Limits: what they may be, the reserve, what can be replayed, and the same call again."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from loopkit.errors import InvalidConfig
from loopkit.loop.limits import Limits, Repeats, is_json


class TestLimits:
    def test_the_defaults(self) -> None:
        assert dataclasses.asdict(Limits()) == {
            "max_requests": 25,
            "repeats": 3,
            "reasoning_tokens": None,
            "completion_tokens": None,
            "reserve": None,
            "result_bytes": 16384,
            "tool_seconds": None,
            "malformed_retries": 1,
        }

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("max_requests", 0),
            ("max_requests", None),
            ("max_requests", True),
            ("max_requests", 2.0),
            ("repeats", 1),
            ("reasoning_tokens", 0),
            ("completion_tokens", -1),
            ("completion_tokens", "8"),
            ("reserve", -1),
            ("result_bytes", 0),
            ("tool_seconds", 0),
            ("tool_seconds", -1.5),
            ("tool_seconds", math.nan),
            ("tool_seconds", math.inf),
            ("tool_seconds", "2"),
            ("tool_seconds", True),
            ("malformed_retries", -1),
        ],
    )
    def test_what_cannot_be_a_limit_is_refused_by_name(self, name: str, value: Any) -> None:
        with pytest.raises(InvalidConfig, match=rf"^limits\.{name}: must be .*; got {value!r}"):
            Limits(**{name: value})

    def test_the_least_that_each_may_be(self) -> None:
        least: dict[str, Any] = {
            "max_requests": 1,
            "repeats": 2,
            "reasoning_tokens": 1,
            "completion_tokens": 1,
            "reserve": 0,
            "result_bytes": 1,
            "tool_seconds": 0.001,
            "malformed_retries": 0,
        }
        assert dataclasses.asdict(Limits(**least)) == least

    @pytest.mark.parametrize(
        ("reserve", "context", "kept"),
        [(None, 512, 64), (None, 8191, 1023), (None, 8192, 1024), (None, 131072, 1024), (2000, 4096, 2000), (0, 4096, 0)],
    )
    def test_the_reserve(self, reserve: int | None, context: int, kept: int) -> None:
        assert Limits(reserve=reserve).reserve_of(context) == kept


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "is_it"),
        [
            ('{"path": "b.py",  "edits":[{"new":"\\u00e9","old":"x"}], "n":1.10, "n":1.10}', True),
            ("{}", True),
            ("[1]", True),
            ('{"n": 111111111111111111111111111111}', True),
            ("", False),
            ('{"path":"a.py","content":"x=', False),
            ('{"a": listt}', False),
            ("{}{}", False),
            ('{"n": NaN}', False),
            ('{"n": 1e999}', False),
            ('{"half": "\\ud83d"}', False),
            ('{"half": "\ud83d"}', False),
            ("[" * 100_000 + "]" * 100_000, False),
        ],
    )
    def test_what_can_be_replayed(self, arguments: str, *, is_it: bool) -> None:
        assert is_json(arguments) is is_it


def verdicts(repeats: Repeats, calls: list[tuple[str, str, str]]) -> list[str]:
    """What is said of each (name, arguments, result), the result told where the call is run."""
    said: list[str] = []
    for name, arguments, result in calls:
        said.append(repeats.before(name, arguments))
        if said[-1] == "run":
            repeats.after(name, arguments, result)
    return said


class TestRepeats:
    LS = ("ls", '{"p":"."}', "a.py")

    @pytest.mark.parametrize(
        ("limit", "said"),
        [
            (2, ["run", "deny", "deny", "end"]),
            (3, ["run", "run", "deny", "deny", "end"]),
            (5, ["run"] * 4 + ["deny", "deny", "end"]),
        ],
    )
    def test_the_third_is_not_run_and_the_fifth_ends(self, limit: int, said: list[str]) -> None:
        assert verdicts(Repeats(limit), [self.LS] * len(said)) == said

    def test_written_otherwise_it_is_the_same_call(self) -> None:
        texts = ['{"p":".","q":1}', '{ "q": 1, "p": "." }', '{"q":1,"p":"\\u002e"}']
        assert verdicts(Repeats(), [("ls", text, "a.py") for text in texts]) == ["run", "run", "deny"]

    @pytest.mark.parametrize(
        "other",
        [("stat", '{"p":"."}', "a.py"), ("ls", '{"p":".."}', "a.py"), ("ls", '{"p":"."}', "b.py")],
        ids=["tool", "arguments", "result"],
    )
    def test_anything_else_between_starts_the_count_again(self, other: tuple[str, str, str]) -> None:
        assert verdicts(Repeats(), [self.LS, other, self.LS, self.LS, self.LS]) == ["run"] * 4 + ["deny"]

    def test_a_result_that_goes_on_changing_is_never_denied(self) -> None:
        assert set(verdicts(Repeats(), [("ls", "{}", str(number)) for number in range(20)])) == {"run"}

    def test_another_call_after_a_denial_is_run_and_starts_the_count_again(self) -> None:
        other = ("ls", '{"p":".."}', "b.py")
        calls = [*[self.LS] * 4, other, *[self.LS] * 3]
        assert verdicts(Repeats(), calls) == ["run", "run", "deny", "deny", "run", "run", "run", "deny"]

"""The registry: which tools stand in the baseline, which are found, and how a call is resolved."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import Any

import pytest

from loopkit.config import Config
from loopkit.contract.baseline import Baseline
from loopkit.contract.neutralise import Tags
from loopkit.encoding import encode
from loopkit.errors import InvalidConfig
from loopkit.loop.tools.registry import Registry
from loopkit.loop.tools.schemas import InvalidCall, JsonTool
from tests.tagtext import P, S, assert_absent, assert_same_text, written

OWN = ["find_tool", "call_tool", "clock"]


def weather(city: str, day: int = 0) -> str:
    """What the weather in a city will be."""
    return f"{city} {day}: rain"


def read_page(url: str) -> str:
    """Fetch a page of the web as text."""
    return url


def echo(name: str, description: str = "Say it again.") -> JsonTool:
    return JsonTool(name, description, {"type": "object", "properties": {"text": {"type": "string"}}}, dict)


def names(registry: Registry) -> list[str]:
    return [schema.function.name for schema in registry.core_schemas()]


class TestCore:
    def test_no_tools_no_schemas(self) -> None:
        assert Registry().core_schemas() == ()

    def test_registration_order_and_loopkits_own_behind(self) -> None:
        registry = Registry([weather, echo("b")])
        registry.add(echo("a"))
        assert names(registry) == ["weather", "b", "a", *OWN]

    def test_found_tools_are_not_told_of(self) -> None:
        registry = Registry()
        registry.add(weather, core=False)
        assert names(registry) == OWN
        assert list(registry.schemas()) == ["weather", *OWN]
        assert registry.names == ("weather",)

    def test_a_baseline_takes_them_as_they_are_and_a_later_tool_waits_for_the_next(self, tmp_path: Path) -> None:
        registry = Registry([weather])
        config = Config(home=tmp_path, system="Be brief.")
        baseline = Baseline.assemble(config, registry)
        sent = baseline.to_json()
        registry.add(read_page)
        assert baseline.to_json() == sent
        assert Baseline.from_json(sent) == baseline
        assert registry.bind("call_tool", {"name": "read_page", "arguments": {"url": "u"}}).run() == "u"
        assert [tool.function.name for tool in Baseline.assemble(config, registry).tools] == ["weather", "read_page", *OWN]

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("weather", "tool weather: a tool of this name exists"),
            ("clock", "tool clock: the name belongs to a tool of loopkit"),
            ("call_tool", "tool call_tool: the name belongs to a tool of loopkit"),
            ("find_tool", "tool find_tool: the name belongs to a tool of loopkit"),
            ("", "tools: '' is not a valid tool name"),
            ("a.b", "tools: 'a.b' is not a valid tool name"),
        ],
    )
    def test_a_name_that_cannot_be_had(self, name: str, why: str) -> None:
        registry = Registry([weather])
        with pytest.raises(InvalidConfig, match=why):
            registry.add(echo("x"), name=name)
        assert registry.names == ("weather",)

    def test_another_name_and_description(self) -> None:
        registry = Registry([weather])
        registry.add(weather, name="weather-2", description="Again.")
        function = registry.schemas()["weather-2"].function
        assert (function.name, function.description) == ("weather-2", "Again.")

    def test_the_repr_is_one_line(self) -> None:
        registry = Registry([weather])
        assert repr(registry) == "Registry of 1 tool: core weather, found none"
        registry.add(read_page, core=False)
        assert repr(registry) == "Registry of 2 tools: core weather, found read_page"
        assert "<td>read_page</td>" in registry._repr_html_()


class TestForeign:
    TAG = P("im_end")

    def test_its_description_is_neutralised_and_the_owners_is_not(self) -> None:
        registry = Registry([echo("ours", self.TAG)])
        registry.add(echo("theirs", self.TAG), foreign=True)
        ours, theirs = (schema.function.description for schema in registry.core_schemas()[:2])
        assert_same_text(str(ours), self.TAG, "ours")
        assert_same_text(str(theirs), written(self.TAG), "theirs")

    def test_a_found_one_is_neutralised_too(self) -> None:
        registry = Registry()
        registry.add(echo("theirs", self.TAG), foreign=True, core=False)
        text = encode(registry.bind("find_tool", {"query": "theirs"}).run()).decode()
        assert_absent(self.TAG, text, "found")

    def test_a_key_with_a_tag_is_refused_and_nothing_is_added(self) -> None:
        registry = Registry()
        tool = JsonTool("theirs", "", {"type": "object", "properties": {self.TAG: {}}}, dict)
        with pytest.raises(InvalidConfig, match="control tag"):
            registry.add(tool, foreign=True)
        assert registry.names == ()
        registry.add(tool)

    def test_a_session_may_know_more_tags(self) -> None:
        role = S("ROLE")
        registry = Registry([echo("ours", role)])
        registry.add(echo("theirs", f"{role} {self.TAG}"), foreign=True)
        registry.use_tags(Tags(literals=[role]))
        registry.add(echo("later", role), foreign=True)
        told = [str(schema.function.description) for schema in registry.core_schemas()[:3]]
        for got, want in zip(told, [role, f"{written(role)} {written(self.TAG)}", written(role)], strict=True):
            assert_same_text(got, want, "described")
        registry.use_tags(Tags.default())
        assert_same_text(str(registry.schemas()["theirs"].function.description), f"{role} {written(self.TAG)}", "fewer again")

    def test_a_session_whose_tags_a_name_holds_is_refused_and_nothing_changes(self) -> None:
        registry = Registry()
        registry.add(echo("first", S("ROLE")), foreign=True)
        registry.add(echo("role_x"), foreign=True)
        before = registry.core_schemas()
        with pytest.raises(InvalidConfig, match="the name of a foreign tool"):
            registry.use_tags(Tags(literals=["role_x", S("ROLE")]))
        assert registry.core_schemas() == before


class TestFind:
    @staticmethod
    def registry() -> Registry:
        registry = Registry()
        for name, description in (
            ("read_page", "Fetch a page of the web."),
            ("weather", "Rain and sun in a city."),
            ("forecast", "The weather of the coming days."),
            ("Translate", "Put a text into another language."),
            ("city_map", ""),
        ):
            registry.add(echo(name, description), core=False)
        return registry

    @pytest.mark.parametrize(
        ("query", "found"),
        [
            ("weather", ["weather", "forecast"]),
            ("the WEATHER in a city", ["weather", "forecast", "city_map"]),
            ("pages", ["read_page"]),
            ("translation text", ["Translate"]),
            ("city", ["city_map", "weather"]),
            ("read-page", ["read_page"]),
        ],
    )
    def test_names_count_for_more_than_descriptions_and_words_for_more_than_beginnings(
        self, query: str, found: list[str]
    ) -> None:
        result = self.registry().bind("find_tool", {"query": query}).run()
        assert [tool["name"] for tool in result["tools"]][: len(found)] == found

    def test_what_is_told_of_a_tool(self) -> None:
        registry = self.registry()
        tool = registry.bind("find_tool", {"query": "map"}).run()
        parameters = {"type": "object", "properties": {"text": {"type": "string"}}}
        assert tool == {"tools": [{"name": "city_map", "description": "", "parameters": parameters}]}

    @pytest.mark.parametrize("query", ["quaternions", "", "?!"])
    def test_nothing_fits(self, query: str) -> None:
        result = self.registry().bind("find_tool", {"query": query}).run()
        assert result == {
            "tools": [],
            "none_fits": query,
            "there_are": "read_page, weather, forecast, Translate, city_map",
        }

    def test_many_fit(self) -> None:
        registry = Registry()
        for number in range(30):
            registry.add(echo(f"tool_{number}"), core=False)
        result = registry.bind("find_tool", {"query": "tool"}).run()
        assert [tool["name"] for tool in result["tools"]] == [f"tool_{number}" for number in range(5)]
        assert result["more"].startswith("tool_5, tool_6")
        assert result["more"].endswith("tool_24 and 5 more")


class TestBind:
    def test_a_core_tool(self) -> None:
        bound = Registry([weather]).bind("weather", {"city": "Lima", "day": "1"})
        assert (bound.name, bound.arguments) == ("weather", {"city": "Lima", "day": "1"})
        assert bound.run() == "Lima 1: rain"

    @pytest.mark.parametrize("core", [True, False])
    def test_through_call_tool_it_is_the_inner_call(self, *, core: bool) -> None:
        registry = Registry()
        registry.add(weather, core=core)
        bound = registry.bind("call_tool", {"name": "weather", "arguments": {"city": "Lima"}})
        assert (bound.name, bound.arguments) == ("weather", {"city": "Lima"})
        assert bound.run() == "Lima 0: rain"

    @pytest.mark.parametrize(
        ("name", "arguments", "told"),
        [
            ("wether", {}, "There is no tool 'wether'. The nearest names are: weather."),
            ("zzz", {}, "There is no tool 'zzz'. There are: weather, find_tool, call_tool, clock."),
            ("z" * 999, {}, f"There is no tool '{'z' * 64}'. There are: weather, find_tool, call_tool, clock."),
            ("weather", {}, "The arguments do not fit weather: city: Missing required argument"),
            (
                "call_tool",
                {"name": "weather", "arguments": {}},
                "The arguments do not fit weather: city: Missing required argument",
            ),
            ("call_tool", {"name": "weather"}, "The arguments do not fit call_tool: arguments: Missing required argument"),
            ("call_tool", {"name": "wether", "arguments": {}}, "There is no tool 'wether'. The nearest names are: weather."),
            (
                "call_tool",
                {"name": "call_tool", "arguments": {"name": "weather", "arguments": {}}},
                "call_tool does not call itself. Give the name of the tool that is to run.",
            ),
            ("clock", {"zone": "UTC"}, "The arguments do not fit clock: zone: Unexpected keyword argument"),
        ],
    )
    def test_a_call_that_cannot_be_run_says_what_to_do(self, name: str, arguments: dict[str, Any], told: str) -> None:
        with pytest.raises(InvalidCall) as raised:
            Registry([weather]).bind(name, arguments)
        assert str(raised.value) == told

    def test_the_clock_gives_the_time_with_the_machines_offset(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TZ", "XXX-05:30")
        time.tzset()
        before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        try:
            text = Registry([weather]).bind("clock", {}).run()
        finally:
            monkeypatch.undo()
            time.tzset()
        moment = datetime.datetime.fromisoformat(text)
        assert before <= moment <= datetime.datetime.now(datetime.UTC)
        assert text.endswith("+05:30")

"""`start` and `resume`: where settings come from, the order of arguments, and parameters that both describe."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopkit.loop.loop import Loop
from loopkit.loop.opening import resume, start
from loopkit.loop.settings import Settings
from tests.loop.scripted_loops import begin, done, quiet, scripted


def test_settings_of_the_environment_and_of_a_file_do_not_change_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = []
    prompt = tmp_path / "prompt.md"
    prompt.write_text("Be kind.")
    monkeypatch.chdir(tmp_path)
    for id in ("plain", "ambient"):
        with scripted(*[done(30 + 20 * number, 0, 6) for number in range(3)]) as (server, script):
            with begin(server, tmp_path, id, system=prompt, options={"seed": 1}) as loop:
                loop.ask("One.")
            with quiet(resume(server, id, home=tmp_path, system="Be brief.")) as loop:
                loop.ask("Two.")
                loop.end_epoch()
                loop.ask("Three.")
            bodies.append([request.body for request in script.requests])
        (tmp_path / "loopkit.toml").write_text('system = "Other."\nhome = "elsewhere"\n[options]\ntemperature = 2\n')
        monkeypatch.setenv("LOOPKIT_OPTIONS", '{"top_k": 1}')
        monkeypatch.setenv("LOOPKIT_SYSTEM_FILE", "other.md")
    assert bodies[0] == bodies[1]
    assert all("temperature" not in json.loads(body) and "top_k" not in json.loads(body) for body in bodies[1])


def test_the_old_order_of_resume_works_and_warns(tmp_path: Path) -> None:
    with scripted() as (server, _):
        begin(server, tmp_path).close()
        old: Any = resume
        calls: list[Callable[[], Loop]] = [
            lambda: old("s", server, home=tmp_path),
            lambda: old("s", server=server, home=tmp_path),
            lambda: old(id="s", server=server, home=tmp_path),
            lambda: old(server, id="s", home=tmp_path),
        ]
        for call in calls:
            with pytest.warns(
                DeprecationWarning, match=r"`resume\(id, server\)` is now `resume\(server, session_id\)`"
            ) as warned:
                call().close()
            assert warned[0].filename == __file__
        resume(server, "s", home=tmp_path).close()


@pytest.mark.parametrize("function", [start, resume])
def test_shared_parameters_are_the_same_and_described(function: object) -> None:
    assert callable(function)
    parameters = inspect.signature(function).parameters
    reference = inspect.signature(start).parameters
    for field in dataclasses.fields(Settings):
        assert parameters[field.name].default == reference[field.name].default
        assert parameters[field.name].annotation == reference[field.name].annotation
    for name in parameters:
        assert f"\n{name} : " in (inspect.getdoc(function) or "")


def test_a_warning_names_the_line_of_the_user(tmp_path: Path) -> None:
    with scripted() as (server, _), pytest.warns(UserWarning, match=r"^The system prompt contains 'It is 10:30'") as warned:
        start(server, system="It is 10:30.", home=tmp_path).close()
    assert warned[0].filename == __file__

"""Settings of a person: home, server and system prompt, from arguments, environment variables and ``loopkit.toml``."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from loopkit.errors import InvalidConfig, describe

__all__ = ["Config"]

_FILE = "loopkit.toml"


class Config(BaseModel):
    """Settings of a session.

    Each setting comes from the first of these that has it: the argument, the environment variable (``LOOPKIT_HOME``,
    ``LOOPKIT_SERVER``, …), and ``loopkit.toml`` in the working directory. Only ``options`` must be an argument, because it
    changes every request body.

    Parameters
    ----------
    home : Path or str
        Directory that contains sessions, memory and replays. Default ``runs``.
    server : str, optional
        URL of a server, or the name or path of a model for the embedded server.
    system : str, optional
        The system prompt as text.
    system_file : Path or str, optional
        The system prompt as a UTF-8 file. Give ``system`` or ``system_file``, not both.
    options : dict, optional
        Members of every request body, such as ``temperature``, in the order in which they are sent.

    Raises
    ------
    InvalidConfig
        If a setting cannot be used. The message names the setting and where it was set.

    Examples
    --------
    >>> Config(system="Be brief.", options={"temperature": 0}).home
    PosixPath('runs')
    >>> Config(system="Be brief.", hoem="runs")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: hoem: there is no setting of this name. Choose one of: home, server, system, ...
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    home: Path = Path("runs")
    """Directory that contains sessions, memory and replays."""
    server: str | None = None
    """URL of a server, or the name or path of a model for the embedded server."""
    system: str | None = None
    """The system prompt as text."""
    system_file: Path | None = None
    """The system prompt as a UTF-8 file."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Members of every request body, such as ``temperature``, in the order in which they are sent."""

    def __init__(self, **values: Any) -> None:
        ambient = _ambient()
        try:
            super().__init__(**{name: value for name, (_, value) in ambient.items()} | values)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"]) or "system"
            place = "" if name in values or name not in ambient else f" (set in {ambient[name][0]})"
            if first["type"] == "extra_forbidden":
                known = ", ".join(type(self).model_fields)
                raise InvalidConfig(name, f"there is no setting of this name{place}", f"Choose one of: {known}") from None
            raise InvalidConfig(name, f"{first['msg'].removeprefix('Value error, ')}{place}") from None

    @model_validator(mode="after")
    def _one_system_prompt(self) -> Self:
        if self.system is not None and self.system_file is not None:
            raise ValueError("give system or system_file, not both")
        return self


def _ambient() -> dict[str, tuple[str, Any]]:
    """Return the settings from the environment and ``loopkit.toml``, by name: the place where each was set, and its value."""
    path = Path(_FILE)
    try:
        table = tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(_FILE, f"it cannot be read: {describe(error)}", "Correct the file or remove it") from None
    found: dict[str, tuple[str, Any]] = {name: (_FILE, value) for name, value in table.items()}
    for name in Config.model_fields:
        variable = f"LOOPKIT_{name.upper()}"
        if variable in os.environ:
            found[name] = (variable, os.environ[variable])
    if "options" in found:
        why = f"it is set in {found['options'][0]}, but options change every request and come from arguments only"
        raise InvalidConfig("options", why, "Remove it there, and give options= in the call")
    return found

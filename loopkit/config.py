"""What a person sets: home, server, system prompt, sampling. From arguments, environment variables, then ``loopkit.toml``.

Written with pydantic, for people write it. Knows nothing of what the settings do.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from loopkit.errors import InvalidConfig

__all__ = ["Config"]


class Config(BaseSettings):
    """Settings of a session.

    Arguments win over environment variables (``LOOPKIT_HOME``, …), these over ``loopkit.toml`` in the working directory.

    Raises
    ------
    InvalidConfig
        Names the member and what is wrong with it.

    Examples
    --------
    >>> Config(system="Be brief.", options={"temperature": 0}).home
    PosixPath('runs')
    >>> Config(system="Be brief.", hoem="runs")
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: hoem: Extra inputs are not permitted
    """

    model_config = SettingsConfigDict(
        env_prefix="LOOPKIT_", toml_file="loopkit.toml", extra="forbid", frozen=True, validate_default=True
    )

    home: Path = Field(default=Path("runs"))
    """The directory that holds sessions, memory and replays."""
    server: str | None = None
    """A URL, or the name or path of a model for the embedded server."""
    system: str | None = None
    """The system prompt as text."""
    system_file: Path | None = None
    """The system prompt as a UTF-8 file; one of the two."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Sampling and template members of every request body, in their order."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidConfig("loopkit.toml", f"it cannot be read: {error}", "Mend or remove it") from None
        except SettingsError as error:
            raise InvalidConfig("environment", str(error), "The variables are named LOOPKIT_…") from None
        except ValidationError as error:
            first = error.errors()[0]
            member = ".".join(str(part) for part in first["loc"]) or "configuration"
            raise InvalidConfig(member, first["msg"].removeprefix("Value error, ")) from None

    @model_validator(mode="after")
    def _one_system_prompt(self) -> Self:
        if self.system is not None and self.system_file is not None:
            raise ValueError("give system or system_file, not both")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

"""Signatures of the public face: every class in them can be imported, and every parameter is documented."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple

import msgspec
import pytest

import loopkit as lk

MODULES = [name for name in lk.__all__ if inspect.ismodule(getattr(lk, name)) and name != "errors"]
MADE = re.compile(r"(made|returned|created) by")
"""In the docstring of a class whose constructor is not public."""


class Member(NamedTuple):
    """A public callable or property, and its name."""

    name: str
    of: Callable[..., Any]
    is_property: bool = False

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.of) or ""


def exported() -> dict[str, Any]:
    """Everything that a public module exports, by its public name."""
    found = {f"lk.{name}": getattr(lk, name) for name in lk.__all__ if not inspect.ismodule(getattr(lk, name))}
    modules = {name: getattr(lk, name) for name in MODULES}
    return found | {f"lk.{name}.{each}": getattr(module, each) for name, module in modules.items() for each in module.__all__}


def classes() -> dict[str, type]:
    return {name: each for name, each in exported().items() if inspect.isclass(each) and not issubclass(each, Exception)}


def members() -> Iterator[Member]:
    for name, each in exported().items():
        if inspect.isfunction(each):
            yield Member(name, each)
    names = {kind: name for name, kind in classes().items()}  # one name for each class
    for kind, each in names.items():
        for attribute, value in vars(kind).items():
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if not attribute.startswith("_") and inspect.isfunction(function):
                yield Member(f"{each}.{attribute}", function, isinstance(value, property))


def sections(doc: str) -> str:
    """The text of the sections Parameters and Attributes."""
    found = re.findall(r"^(?:Parameters|Attributes)\n-+\n(.*?)(?=\n\n[A-Z][a-z]+\n---|\Z)", doc, re.DOTALL | re.MULTILINE)
    return "\n".join(found)


def undocumented(doc: str, function: Callable[..., Any]) -> list[str]:
    lines = [line.split(" :")[0] for line in sections(doc).splitlines() if not line.startswith(" ")]
    documented = {name.strip(" *") for line in lines for name in line.split(",")}
    return [name for name in inspect.signature(function).parameters if name not in documented | {"self", "cls"}]


def is_made_elsewhere(kind: type) -> bool:
    """Whether a class has no constructor to document: its members have docstrings of their own, or a function makes it."""
    as_data = dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct | Enum | str) or hasattr(kind, "_fields")
    return as_data or "__init__" not in vars(kind) or "_is_protocol" in vars(kind) or MADE.search(kind.__doc__ or "") is not None


@pytest.mark.parametrize("member", [pytest.param(each, id=each.name) for each in members() if not each.is_property])
def test_each_parameter_is_documented(member: Member) -> None:
    assert undocumented(member.doc, member.of) == []


@pytest.mark.parametrize("name", classes())
def test_the_parameters_of_a_class_are_documented(name: str) -> None:
    kind = classes()[name]
    assert is_made_elsewhere(kind) or undocumented(inspect.getdoc(kind) or "", kind) == []


def own_classes() -> set[str]:
    """Names of all classes of loopkit that have no underscore."""
    found = set()
    for each in pkgutil.walk_packages(lk.__path__, "loopkit."):
        if each.name.endswith("__main__"):
            continue
        module = vars(importlib.import_module(each.name))
        found |= {name for name, value in module.items() if inspect.isclass(value) and value.__module__ == each.name}
    return {name for name in found if not name.startswith("_")}


def names_in_annotations() -> Iterator[tuple[str, str]]:
    """Name of each public callable, property or data class, and a name in the annotations of its signature."""
    for member in members():
        aliases = {name for name, value in member.of.__globals__.items() if not inspect.isclass(value)}
        for annotation in inspect.get_annotations(member.of).values():
            yield from ((member.name, name) for name in re.findall(r"\w+", str(annotation)) if name not in aliases)
    for name, kind in classes().items():
        if not MADE.search(kind.__doc__ or ""):
            aliases = {each for each, value in vars(sys.modules[kind.__module__]).items() if not inspect.isclass(value)}
            for annotation in inspect.get_annotations(kind).values():
                yield from ((name, each) for each in re.findall(r"\w+", str(annotation)) if each not in aliases)


def test_each_class_in_a_public_signature_can_be_imported() -> None:
    reachable = {name.rpartition(".")[2] for name in exported()} | set(lk.errors.__all__)
    own = own_classes()
    hidden: dict[str, set[str]] = {}
    for place, name in names_in_annotations():
        if name in own - reachable:
            hidden.setdefault(name, set()).add(place)
    assert hidden == {}


def test_the_test_finds_what_it_must() -> None:
    def undescribed(one: int, *others: int, more: int = 0) -> None:
        """Nothing.

        Parameters
        ----------
        one, *others : int
            Numbers.
        """

    assert undocumented(inspect.getdoc(undescribed) or "", undescribed) == ["more"]
    assert {"lk.start", "lk.cache.reuse", "lk.Loop.ask"} <= {member.name.replace("lk.loop.", "lk.") for member in members()}
    assert "Completion" in own_classes()

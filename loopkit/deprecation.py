"""Old public names: they work for one version and warn with the new name."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

__all__ = ["renamed_argument", "renamed_names", "warn_renamed"]

P = ParamSpec("P")
R = TypeVar("R")


def warn_renamed(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Issue a ``DeprecationWarning`` that a public name has a new name.

    Parameters
    ----------
    old, new : str
        The old and the new name, as they appear in a user's code.
    stacklevel : int
        Stack level of the user's line, as in ``warnings.warn``; 1 is the line in this function.
    """
    message = f"`{old}` is now `{new}`. The old name stops working in loopkit 0.3."
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)


def renamed_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` function for a module, through which old names still work.

    Parameters
    ----------
    module : str
        The module's ``__name__``.
    names : mapping of str to str
        The new name for each old name. Both are names of this module.

    Returns
    -------
    callable
        The function to assign to ``__getattr__``.

    Examples
    --------
    >>> find = renamed_names("loopkit.errors", {"OldError": "LoopkitError"})
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     find("OldError").__name__, str(caught[0].message)
    ('LoopkitError', '`loopkit.errors.OldError` is now `LoopkitError`. The old name stops working in loopkit 0.3.')
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_renamed(f"{module}.{name}", names[name])
        return getattr(importlib.import_module(module), names[name])

    return find


def renamed_argument(old: str, new: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that accepts a keyword argument under its old name.

    Parameters
    ----------
    old, new : str
        The old and the new name of the argument.

    Returns
    -------
    callable
        The decorator. A call with the old name works, and issues a ``DeprecationWarning``.

    Examples
    --------
    >>> @renamed_argument("colour", "color")
    ... def paint(*, color: str) -> str:
    ...     return color
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     paint(colour="red"), str(caught[0].message)
    ('red', '`paint(colour=…)` is now `paint(color=…)`. The old name stops working in loopkit 0.3.')
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if old in kwargs:
                warn_renamed(f"{function.__name__}({old}=…)", f"{function.__name__}({new}=…)")
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate

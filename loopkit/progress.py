"""Progress bars."""

from __future__ import annotations

import sys
from typing import Any

from tqdm.auto import tqdm

__all__ = ["progress_bar"]

DELAY = 2.0
"Seconds of work after which a bar appears if ``progress`` is None."


def progress_bar(*, progress: bool | None, total: int, unit: str, label: str, scale: bool = False) -> tqdm[Any]:
    """Return a progress bar.

    Parameters
    ----------
    progress : bool or None
        True shows the bar, False does not. None shows it after 2 seconds, in a notebook or if standard error is a terminal.
    total : int
        Number of units of work until the bar is full.
    unit : str
        Name of one unit of work, such as ``"request"``.
    label : str
        Text in front of the bar.
    scale : bool
        Whether to print large numbers with a unit prefix, such as ``1.2M``.

    Returns
    -------
    tqdm
        A context manager; call ``update(n)`` after ``n`` units of work.

    Examples
    --------
    >>> with progress_bar(progress=False, total=3, unit="request", label="replay") as bar:
    ...     _ = bar.update(3)
    """
    is_shown = _has_display() if progress is None else progress
    delay = DELAY if progress is None else 0
    return tqdm(total=total, unit=unit, unit_scale=scale, desc=label, delay=delay, disable=not is_shown)


def _has_display() -> bool:
    """Return True if standard error is a terminal, or if this process is a notebook's kernel."""
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())

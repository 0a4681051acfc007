"""Figures are drawn without a screen, and none is left open."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib as mpl
import pytest
from matplotlib import pyplot


@pytest.fixture(autouse=True)
def no_figures_are_left() -> Iterator[None]:
    mpl.use("agg")
    yield
    pyplot.close("all")
    assert pyplot.get_fignums() == []

"""What a panel may leave open, counted."""

from __future__ import annotations

import comm
from ipywidgets.widgets.widget import _instances

from tests.loop.scripted_loops import threads_of_ours


def count_open() -> tuple[int, int, int]:
    """Comms, widgets and threads."""
    return len(comm.get_comm_manager().comms), len(_instances), len(threads_of_ours())

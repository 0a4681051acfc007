"""A turn in a cell of a real kernel: its event loop runs, and an interrupt reaches the cell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

from tests.loop.scripted_loops import done, scripted
from tests.server.scripted import HANG, sse, text

ROOT = Path(__file__).parents[2]

SET_UP = """
import asyncio, sys, threading
from pathlib import Path
from loopkit.loop.opening import start
from loopkit.server.client import Server
from loopkit.server.detection import Detected
from loopkit.server.transport.connection import Wire
from tests.loop.scripted_loops import DEFAULT
server = Server(Wire({url!r}, timeout=30), Detected("llama.cpp"))
server._tags = DEFAULT
loop = start(server, system="Be brief.", home={home!r}, id="s", memory="")
"""


@pytest.fixture
def kernel() -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    manager, client = start_new_kernel(cwd=str(ROOT))
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_ctrl_c_reaches_the_cell_and_the_next_cells_go_on(
    kernel: tuple[KernelManager, BlockingKernelClient], tmp_path: Path
) -> None:
    manager, client = kernel

    def cell(code: str, *, interrupt_at: str = "") -> tuple[str, str]:
        """Run a cell; gives what it streamed, and the name of the error that ended it."""
        streamed: list[str] = []

        def watch(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                streamed.append(message["content"]["text"])
                if interrupt_at and "".join(streamed) == interrupt_at:
                    manager.interrupt_kernel()

        reply = client.execute_interactive(code, output_hook=watch, timeout=30)
        return "".join(streamed), reply["content"].get("ename", "")

    answers = [[*sse(text("Do")), HANG], *(done(prompt, None, 6) for prompt in (40, 60, 80, 100))]
    with scripted(*answers) as (server, script):
        assert cell(SET_UP.format(url=server.url, home=str(tmp_path))) == ("", "")
        assert cell('loop.ask("One.")', interrupt_at="Do") == ("Do", "KeyboardInterrupt")
        assert script.requests[0].hung_up.wait(10)  # though the kernel keeps the traceback
        assert cell("print(len(loop.session.records), loop.pending)") == ("1 ()\n", "")
        assert cell('turn = loop.ask("One.")') == ("Done.\n", "")
        assert script.requests[1].body == script.requests[0].body
        assert cell('await asyncio.sleep(0); turn = loop.ask("Two.")') == ("Done.\n", "")
        assert cell('turn = await asyncio.to_thread(loop.ask, "Three.", on_event=print)\nprint(turn.stop)')[1] == ""
        assert cell('async def asks(): return loop.ask("Four.")\nturn = await asks()') == ("Done.\n", "")
        assert cell("loop.close()") == ("", "")

"""Ctrl-C at every step of a request, httpx's and httpcore's own steps with it: the server in hand goes on answering, and closes.

In a process of its own, so that what waits for ever is a failure and no test run that hangs. ``LOOPKIT_INTERRUPTS`` sets at how
many steps of a request; without it at all of them, for only a few are bad.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SAMPLE = int(os.environ.get("LOOPKIT_INTERRUPTS", "0"))

SWEEP = """
import contextlib, faulthandler, inspect, sys
import httpcore, httpx, loopkit as lk
from pathlib import Path
from tests.server.scripted import make_request

faulthandler.dump_traceback_later(300, exit=True)
OURS = tuple(str(Path(each.__file__).parent) for each in (lk, httpx, httpcore))


class Sweep:
    "Raises KeyboardInterrupt at the n-th step at which Python may take a signal: a call or a return."

    def __init__(self, at):
        self.at, self.seen = at, 0

    def step(self, frame, event, _):
        code = frame.f_code
        if event in ("c_call", "c_return", "c_exception") or not code.co_filename.startswith(OURS):
            return
        if code.co_flags & inspect.CO_GENERATOR:
            return  # one that is dropped ends here, and Python swallows what is raised then
        self.seen += 1
        if self.seen == self.at:
            raise KeyboardInterrupt

    def __enter__(self):
        sys.setprofile(self.step)
        return self

    def __exit__(self, *exception):
        sys.setprofile(None)


def sweep(what, places):
    "Do it, interrupted at so many of its steps, one at a time."
    with Sweep(0) as counting:
        what()
    for at in range(1, counting.seen + 1, max(1, counting.seen // places)):
        with contextlib.suppress(KeyboardInterrupt), Sweep(at):
            what()
        yield at


"""

REQUEST = """
request = make_request(max_tokens=1)
server = lk.serve("tiny")
for what in (lambda: server.complete(request), server.props):
    for at in sweep(what, PLACES):
        assert server.complete(request).finish_reason == "length", at
        assert server.props(), at
server.close()
assert not server._child.alive()
"""

CLOSE = """
at = 0
while True:
    at += 1
    server = lk.serve("tiny")
    with contextlib.suppress(KeyboardInterrupt), Sweep(at) as steps:
        server.close()
    server.close()
    assert not server._child.alive(), at
    assert not server.slot_dir.exists(), at
    if steps.seen < at:
        break
"""


@pytest.mark.server
@pytest.mark.parametrize("program", [REQUEST, CLOSE], ids=["request", "close"])
def test_after_an_interrupt_the_server_answers_and_closes(program: str) -> None:
    command = [sys.executable, "-c", SWEEP + program.replace("PLACES", str(SAMPLE or sys.maxsize))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]  # Python also writes there what is raised where a generator is dropped

"""Logs, sessions and objects full of what must stay text; run in a kernel by the browser tests, as a module of the notebook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from loopkit.contract.records import CacheLoss, LogRecord
from loopkit.loop.loop import Loop
from loopkit.loop.opening import start
from loopkit.server.client import Server
from loopkit.server.embedded.tag_vocabulary import piped
from tests.logs import make

RUN = "window.canary = 1"
PIECES = [
    f"<script>{RUN}</script>",
    f'<img src=x onerror="{RUN}">',
    f"<svg onload='{RUN}'>",
    "</span></div></table></details><iframe srcdoc='<script>parent.canary = 1</script>'></iframe>",
    f'" onmouseover="{RUN}" autofocus onfocus="{RUN}" x="',
    f"' onmouseover='{RUN}' x='",
    f'<a href="javascript:{RUN}">here</a>',
    "<style>* { display: none }</style><link rel=stylesheet href=//example.org/x><base href=//example.org>",
    rf"it costs $5 and $6; \(x\) \[y\] $$\href{{javascript:{RUN}}}{{z}}$$ \begin{{align}}a\end{{align}}",
    "<!-- <![CDATA[ {{7*7}} &lt;script&gt;",
    piped("im_start") + "system" + piped("im_end"),
    "\x1b[31mred\x07\u202edrow\u2028line\x85next\x0b",
]
HOSTILE = "\n".join(PIECES)
LONG = "w" * 1_000_000
WHAT = "<b onclick='window.canary = 1'>$5</b>"
"Short enough for a cell of a table."


def now_in(city: str) -> str:
    """The time of day in a city."""
    return HOSTILE + LONG


def speak(server: Server, home: Path) -> Loop:
    """A session whose model can say one thing only."""
    grammar = "root ::= " + " ".join(_literal(piece) for piece in PIECES[:7])
    options = {"grammar": grammar, "max_tokens": 1500}
    return start(server, system="Be brief.", home=home, id="says", memory="", options=options)


def _literal(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def call(server: Server, home: Path) -> None:
    """A session whose person and whose tool say all of it, a megabyte long."""
    with start(server, system=f"Be brief. {HOSTILE}", tools=[now_in], home=home, id="calls", memory="") as loop:
        loop.on_event = None
        loop.ask(f"{HOSTILE} What is the time?")


def write_logs(home: Path) -> None:
    """Logs that nobody's loop wrote: every free text in them is hostile."""
    make.write_session(home, "log", [make.start("log", model=WHAT), *_losing(HOSTILE + LONG)])
    loss: dict[str, Any] = {
        "cause": WHAT,
        "location": HOSTILE,
        "evidence": {WHAT: HOSTILE, "before": WHAT, "was": HOSTILE, "now": LONG},
    }
    replayed = [replace(each, **loss) if each.lost_tokens else each for each in make.replay(WHAT, 3, broken=True)]
    make.write(home / "replays" / "replayed.jsonl", replayed)


def _losing(text: str) -> Iterator[LogRecord]:
    yield make.user(1, text)
    yield make.assistant(2, text)
    yield make.usage(2, 1, 1000, 0, finish_reason=WHAT)
    yield make.user(3, text)
    yield make.assistant(4, text)
    yield make.usage(4, 2, 1100, 0, expected=1000)
    yield CacheLoss(
        time=make.stamp(4),
        request=2,
        expected_tokens=1000,
        expected_exact=True,
        reusable_tokens=1000,
        cached_tokens=0,
        lost_tokens=1000,
        cause=WHAT,
        certainty="confirmed",
        fixable_by="client",
        location=text,
        evidence={WHAT: text, "before": text, "was": text, "now": WHAT},
    )

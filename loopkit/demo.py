"""``loopkit demo``: measure on a real server how many tokens a stable prefix saves.

The demo runs one conversation twice. The first run is a session in which each request begins with the bytes of the previous one.
The second is a replay with a common mistake: a system prompt that contains the current time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from loopkit.encoding import encode

if TYPE_CHECKING:
    from loopkit.server.client import Server

__all__ = ["Summary", "run"]

SYSTEM = """You are the assistant of a small observatory. You answer briefly and in plain words.

About the house. The observatory stands on a hill at 2,410 metres. It has two telescopes: the old refractor in the east dome,
which visitors may use, and a one-metre reflector in the west dome, which is booked by the night. The reflector has a camera and a
spectrograph; changing from one to the other takes half an hour, and is done at dusk. The roof of the west dome does not open when
the wind is above 15 metres a second or the air is more humid than 85 per cent. Nobody opens it by hand.

About the nights. A night is planned the afternoon before, at four. The plan names the observer, the targets in their order, the
filters and the length of each exposure. Time lost to clouds is not made up for. Calibration frames are taken at dusk and at dawn:
twenty bias frames, ten flat fields in each filter that was used, and a dark frame for every length of exposure. What was seen
goes into the log at once, not in the morning: the target, the seeing, the clouds, and whatever went wrong.

About visitors. They come on Fridays, in groups of at most twelve, and leave before midnight. They bring warm clothes and red
lamps; white light is not used outside. Children look first. In the east dome they see the Moon when it is up, a planet, a double
star and one cluster, in this order, and somebody of the house stands at the eyepiece with them.

About the data. Frames are copied to the archive every hour and checked by their sums. Raw frames are never changed and never
deleted. A reduced frame names the raw frames that it was made of, the version of the program, and the person who ran it. Data
belong to the observer for a year and to everyone after that.

About answers. Say what you know from these notes. When the notes do not say, say that they do not. Never invent a number."""

QUESTIONS = (
    "When is a night planned, and by when is it fixed",
    "What do visitors see in the east dome, and in which order",
    "May the west dome be opened by hand when the wind is low",
    "Which calibration frames are taken, and how many of each",
    "How long does it take to change from camera to spectrograph",
    "Who stands at the eyepiece when children come to look",
    "For how long do the data belong to the observer alone",
    "What must a reduced frame name, besides its raw frames",
)


class Summary(NamedTuple):
    """Result of the demo: token totals of both runs, the server, and whether the log was verified."""

    kept: Mapping[str, float | None]
    "Totals of the session: prompt_tokens, cached_tokens, read_tokens, lost_tokens, prompt_ms, requests. None: not reported."
    broken: Mapping[str, float | None]
    "The same totals for the replay with the time in the system prompt."
    model: str | None
    engine: str | None
    verified: bool
    "True if every request, rebuilt from the session's log, has the SHA-256 that was recorded when it was sent."


def run(
    out: str | Path = "demo", *, model: str = "smollm2", url: str | None = None, turns: int = 8, api_key: str | None = None
) -> Summary:
    """Run the demo, print the result, and write a figure, tables and logs.

    Parameters
    ----------
    out : str or Path
        Directory for ``prefix_reuse.png``, ``usage.csv``, ``cache_loss.csv``, ``epochs.csv``, ``summary.json`` and the logs.
    model : str
        Model of the embedded server: ``"smollm2"``, ``"tiny"`` or the path of a GGUF file.
    url : str, optional
        Base URL of a running server to use instead of the embedded one.
    turns : int
        Number of questions, one request each.
    api_key : str, optional
        API key of the server at `url`.

    Returns
    -------
    Summary
        The totals. They are also printed, and written to ``summary.json``.

    Raises
    ------
    ServerError
        If the server cannot be started, or refuses a request.
    """
    from loopkit.server.opening import connect, serve

    out = Path(out)
    with connect(url, api_key=api_key) if url else serve(model, slots=1, context=8192 + 256 * max(0, turns - 16)) as server:
        if url:
            _check_access(server)
        out.mkdir(parents=True, exist_ok=True)
        logs, verified = _measure(server, out, turns)
    figure_path = out / "prefix_reuse.png"
    _draw(logs, figure_path)
    for frame in ("usage", "cache_loss", "epochs"):
        getattr(logs, frame).to_csv(out / f"{frame}.csv", index=False)
    usage = logs.usage
    replays = set(logs.sessions.loc[logs.sessions["source"] == "replay", "session"])
    kept, broken = (_totals(usage[usage["session"].isin(replays) == side]) for side in (False, True))
    summary = Summary(kept, broken, server.model, server.engine, verified)
    (out / "summary.json").write_bytes(encode(summary._asdict(), "summary") + b"\n")
    _print(summary, out)
    return summary


def _check_access(server: Server) -> None:
    """Send one short request. If the server refuses it, the demo fails here, before it writes a file."""
    named = {} if server.model is None else {"model": server.model}
    body = {**named, "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 1}
    server.wire.ask(f"{server.wire.api}/chat/completions", encode(body))


def _measure(server: Server, out: Path, turns: int) -> tuple[Any, bool]:
    from tqdm.auto import tqdm

    import loopkit.replay
    from loopkit.logs.loading import load
    from loopkit.loop.opening import start
    from loopkit.session.verify import verify

    print(f"{server!r}")
    with tqdm(total=2 * turns, unit="request", leave=False) as bar:
        options = {"temperature": 0, "seed": 1, "max_tokens": 40}
        bar.set_description("contract kept")
        with start(server, system=SYSTEM, memory="", home=out, options=options) as loop:
            loop.on_event = None
            for number in range(turns):
                loop.ask(f"{QUESTIONS[number % len(QUESTIONS)]}.")
                bar.update()
            session = loop.session
        bar.set_description("time in the system prompt")
        broken = loopkit.replay.run(session, server, "clock_in_system", on_request=lambda record: bar.update())
    return load(session.dir).concat(broken), verify(session.dir).ok


def _totals(usage: Any) -> dict[str, float | None]:
    """Return the sum of each measure over the requests of a frame; None for a measure that the server does not report."""
    columns = ("prompt_tokens", "cached_tokens", "read_tokens", "lost_tokens", "prompt_ms")
    sums = {name: usage[name].sum(min_count=1) for name in columns}
    known = {name: None if value is None or value != value else value for name, value in sums.items()}
    totals = {
        name: value if value is None else float(value) if name == "prompt_ms" else int(value) for name, value in known.items()
    }
    return {**totals, "requests": len(usage)}


def _draw(logs: Any, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from loopkit.plot import prefix_reuse

    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    sessions = logs.sessions
    labels = dict.fromkeys(sessions.loc[sessions["source"] == "replay", "session"], "time in the system prompt")
    prefix_reuse(logs, ax=figure.subplots(), labels=labels)
    figure.savefig(path, dpi=150)


def _print(summary: Summary, out: Path) -> None:
    names = ("requests", "prompt_tokens", "cached_tokens", "read_tokens", "lost_tokens", "prompt_ms")
    print(f"{'':16}{'contract kept':>16}{'time in the system prompt':>28}")
    for name in names:
        cells = ("not reported" if side[name] is None else f"{side[name]:,.0f}" for side in (summary.kept, summary.broken))
        kept, broken = cells
        print(f"{name.replace('read', 'processed').replace('_', ' '):18}{kept:>14}{broken:>28}")
    read, wasted = summary.kept["read_tokens"], summary.broken["read_tokens"]
    if read and wasted:
        print(
            f"\nWith a stable prefix the server processed {read:,.0f} prompt tokens. With the time in the system prompt it "
            f"processed {wasted:,.0f} for the same work: {wasted / read:.1f} times as many."
        )
    else:
        print("\nThe server does not report cached tokens, so the demo cannot measure its cache.")
    state = (
        "verified: every request was rebuilt from its log, byte for byte"
        if summary.verified
        else f"NOT VERIFIED. To see the faults: loopkit verify {out}"
    )
    print(f"The session is {state}.\nFigure, tables and logs: {out}/")

"""State that the turns of a loop share."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from loopkit.cache.losses.watch import Watch
from loopkit.contract.neutralise import Tags
from loopkit.contract.records import Usage
from loopkit.contract.request import RequestEncoder
from loopkit.loop.epochs import Carry, OnFull
from loopkit.loop.limits import Limits
from loopkit.loop.parking import unused_after_restore
from loopkit.loop.tools.execution import ToolPort
from loopkit.server.transport.cancellation import Cancellation

if TYPE_CHECKING:
    from loopkit.contract.baseline import Baseline
    from loopkit.server.client import Server
    from loopkit.session.session import Session

__all__ = ["State"]


@dataclasses.dataclass
class State:
    """The session and the server of a loop, and the settings of the loop's turns."""

    session: Session
    server: Server
    encoder: RequestEncoder
    port: ToolPort
    limits: Limits
    tags: Tags
    next_baseline: Callable[[], Baseline]
    "Function that assembles the baseline of the next epoch from the present system prompt, memory and tools."
    on_full: OnFull = "stop"
    carry: Carry = "turn"
    slot: int | None = None
    "Server slot to release when the loop closes; None if the loop has taken no slot."
    stopping: Cancellation = dataclasses.field(default_factory=Cancellation)
    "Set to stop the running turn."
    restored: int | None = None
    "Number of tokens that `resume` restored into the slot. Set to None after the first request, which shows if they were used."

    def __post_init__(self) -> None:
        self._encoded = self.session.start
        self.watch = Watch(self.server)

    def update_encoder(self) -> None:
        """Replace the request encoder if it belongs to an earlier epoch.

        This happens if an interrupt came just after the session opened an epoch.
        """
        session = self.session
        if self._encoded is not session.start:
            self.encoder = RequestEncoder.resume(session.start, session.baseline, session.records)
            self._encoded = session.start

    def check_restored(self, usage: Usage) -> None:
        """After the first request, warn if it did not use all restored tokens. Later calls do nothing."""
        restored, self.restored = self.restored, None
        if restored is not None and (message := unused_after_restore(restored, usage)):
            warnings.warn(message, UserWarning, stacklevel=2)

"""Experiments: what was sent, sent again, unchanged or with one thing changed on purpose, and what the cache did.

``run`` sends it once, ``compare`` measures what each change costs on the same work; ``summary`` gives that in one row a variant,
``told`` as a text.
"""

from loopkit.replay.comparing import compare
from loopkit.replay.costs import summary, told
from loopkit.replay.sending import run

__all__ = ["compare", "run", "summary", "told"]


def __dir__() -> list[str]:
    return list(__all__)

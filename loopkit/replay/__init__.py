"""Experiments: what was sent, sent again, unchanged or with one thing changed on purpose, and what the cache did.

``run`` sends it once, ``compare`` measures what each change costs on the same work, ``summary`` says it in one row a variant.
"""

from loopkit.replay.comparing import compare, summary
from loopkit.replay.sending import run

__all__ = ["compare", "run", "summary"]

"""Memory: what sessions learned, in three tiers of nodes named by the hash of their content and traceable to their sources."""

from pathlib import Path

from loopkit.contract.provenance import Provenance, Record, Role
from loopkit.ids import ProjectId, QueryId, RunId
from loopkit.memory.build import Built
from loopkit.memory.frames import Lineage
from loopkit.memory.ingest import Ingested
from loopkit.memory.memory import Memory
from loopkit.memory.model import ServerModel
from loopkit.memory.nodes import Chunk, Level, MemoryNode
from loopkit.memory.recall import Evidence, Recalled
from loopkit.memory.verify import Verification
from loopkit.server.client import Server

__all__ = [
    "Built",
    "Chunk",
    "Evidence",
    "Ingested",
    "Level",
    "Lineage",
    "Memory",
    "MemoryNode",
    "ProjectId",
    "Provenance",
    "QueryId",
    "Recalled",
    "Record",
    "Role",
    "RunId",
    "ServerModel",
    "Verification",
    "open",
]


def __dir__() -> list[str]:
    return list(__all__)


def open(home: Path | str = "runs", *, server: Server | None = None) -> Memory:
    """Open the memory of a home. Nothing is read or created until it is used.

    Parameters
    ----------
    home : Path or str
        The directory with ``memory/``.
    server : Server, optional
        Counts tokens with its tokenizer, and builds if no other model is given.

    Returns
    -------
    Memory

    Examples
    --------
    >>> import tempfile
    >>> open(tempfile.mkdtemp())
    Memory: chunks 0
    """
    return Memory(home, server)

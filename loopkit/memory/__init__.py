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
    """Open the memory in a loopkit directory. Files are read and created at the first use, not here.

    Parameters
    ----------
    home : Path or str
        The loopkit directory (default ``runs``). The memory is in its subdirectory ``memory/``.
    server : Server, optional
        The server whose tokenizer counts tokens. It is also the default model of :meth:`Memory.build` and
        :meth:`Memory.synthesise`.

    Returns
    -------
    Memory
        An object to ingest transcripts, build the memory, search it and trace its entries.

    Examples
    --------
    >>> import tempfile
    >>> open(tempfile.mkdtemp())
    Memory: chunks 0
    """
    return Memory(home, server)

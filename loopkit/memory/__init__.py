"""Memory: what sessions learned, in three tiers of nodes named by the hash of their content and traceable to their sources."""

from loopkit.contract.provenance import Provenance, Record, Role
from loopkit.ids import ProjectId, QueryId, RunId
from loopkit.memory.memory import Memory, open
from loopkit.memory.model import ServerModel
from loopkit.memory.types import Chunk, Level, MemoryNode

__all__ = [
    "Chunk",
    "Level",
    "Memory",
    "MemoryNode",
    "ProjectId",
    "Provenance",
    "QueryId",
    "Record",
    "Role",
    "RunId",
    "ServerModel",
    "open",
]


def __dir__() -> list[str]:
    return list(__all__)

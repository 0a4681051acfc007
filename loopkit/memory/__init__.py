"""Memory: what sessions learned, as evidence that can be traced, in tiers whose pieces are named by their content."""

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

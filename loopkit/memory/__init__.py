"""Memory: what sessions learned, as evidence that can be traced, in tiers whose pieces are named by their content."""

from loopkit.ids import ProjectId, QueryId, RunId
from loopkit.memory.types import Chunk, Level, MemoryNode
from loopkit.provenance import Provenance, Record, Role

__all__ = ["Chunk", "Level", "MemoryNode", "ProjectId", "Provenance", "QueryId", "Record", "Role", "RunId"]

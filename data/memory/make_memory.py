"""How the fixtures of memory identity were made: `python data/memory/make_memory.py`. Their hashes stand in tests as literals.

A change of the canonical encoding gives other hashes, and would orphan every node that is stored: never write these files anew,
make a new version of the encoding instead.
"""

from __future__ import annotations

from pathlib import Path

from loopkit.contract.provenance import Provenance, Record, Role
from loopkit.ids import ProjectId, QueryId, RunId
from loopkit.memory.nodes import Chunk, Level, MemoryNode

RECORDS = (
    Record(Role.User, "¿Hay luz en Lima? é e\u0301 \u2028 😀\r\n", "2026-11-30T07:31:05.000000Z", Provenance("lima/0", 0)),
    Record(Role.Assistant, "", None, Provenance("lima/0", 312)),
    Record(Role.ToolResult, "07:31\n", None, Provenance("claude:5f0e", 1 << 40)),
    Record(Role.System, " ", None, Provenance("s", 1)),
)


def main() -> None:
    """Write the files beside this one."""
    here = Path(__file__).parent
    chunk = Chunk.of(3, RECORDS, 77)
    node = MemoryNode.of(
        Level.L1, ProjectId("peru"), QueryId("light:lima"), RunId("r1"), 3, "Light until six. é 😀\n", (chunk.sha256,)
    )
    (here / "chunk.json").write_bytes(chunk.to_json())
    (here / "node.json").write_bytes(node.to_json())


if __name__ == "__main__":
    main()

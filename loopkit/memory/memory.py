"""`Memory`: ingest transcripts, build from them, render the memory block, search and trace.

A memory can be built at any time. A running epoch keeps its prompt; the next epoch of a session includes the new memory block.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopkit.contract.baseline import memory_block
from loopkit.errors import InvalidConfig, LogError, SessionIOError, describe
from loopkit.ids import ProjectId, QueryId, RunId, Sha256Hash
from loopkit.logs.problems import Errors, Problem, check_errors
from loopkit.memory import recall as reading
from loopkit.memory.build import Built, Summarise, fold_project, fold_query, render_block
from loopkit.memory.ingest import Ingested, ingest, new_run
from loopkit.memory.model import ServerModel, counter
from loopkit.memory.nodes import MemoryNode, need_count
from loopkit.memory.recall import Evidence, Recalled, need_project
from loopkit.memory.sources import Sources, transcripts
from loopkit.memory.store import Store
from loopkit.memory.verify import Verification, verify
from loopkit.reprs import Card
from loopkit.server.client import Server
from loopkit.session.disk import create_file

if TYPE_CHECKING:
    import pandas as pd

    from loopkit.memory.frames import Lineage

__all__ = ["Memory"]

BUDGET = 1_024
"Default limit in tokens, for a chunk of evidence and for the memory block."


class Memory:
    """The memory of past sessions in a loopkit directory. Open one with :func:`loopkit.memory.open`.

    A memory has nodes of three levels: evidence from transcripts (L0), a memory for each question (L1), a synthesis (L2).

    Parameters
    ----------
    home : Path or str
        The loopkit directory. The memory is in its subdirectory ``memory/``.
    server : Server, optional
        The server whose tokenizer counts tokens. It is also the default model of :meth:`build` and :meth:`synthesise`.

    Examples
    --------
    >>> import tempfile
    >>> from loopkit.memory import Provenance, Record, Role
    >>> memory = Memory(tempfile.mkdtemp())
    >>> texts = ("It is light in Lima until six.", "The port is closed.")
    >>> records = [Record(Role.User, text, None, Provenance("notes", 100 * at)) for at, text in enumerate(texts)]
    >>> ingested = memory.ingest(records, project="peru", budget=1)
    >>> def model(prompt: str) -> str:
    ...     return "Until six." if "six" in prompt.split("New:")[1] else "UNCHANGED"
    >>> built = memory.build("peru", "light", "When is it light?", model=model)
    >>> built.calls, memory.build("peru", "light", "When is it light?", model=model).calls
    (2, 0)
    >>> print(memory.render("peru"))
    ## When is it light?
    <BLANKLINE>
    Until six.
    >>> [(each.source, each.offset, each.text) for each in memory.trace(built.node)]
    [('notes', 0, 'It is light in Lima until six.')]
    >>> memory.trace("0" * 64)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    loopkit.errors.LogError: memory: there is no node 000...
    >>> memory.write("prue")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    loopkit.errors.LogError: ...memory: there is no project prue. Known here: peru
    """

    def __init__(self, home: Path | str, server: Server | None = None) -> None:
        if server is not None and not isinstance(server, Server):
            raise InvalidConfig("server", f"expected a Server; got {server!r:.80}", "Create one with lk.serve or lk.connect")
        self._store, self._server = Store(home), server

    @property
    def dir(self) -> Path:
        """The directory of the memory, ``<home>/memory``."""
        return self._store.dir

    def ingest(
        self,
        what: Sources,
        *,
        project: ProjectId | str,
        run: RunId | str | None = None,
        budget: int = BUDGET,
        errors: Errors = "raise",
    ) -> Ingested:
        """Add the records of transcripts to the memory, as evidence (level L0).

        Parameters
        ----------
        what : Session, Path, str or iterable of Record
            A session, the directory of a session, a loopkit directory (all its sessions), another tool's log or a directory of
            such logs (see `loopkit.logs.foreign.formats`), or records, which are read one by one.
        project : ProjectId or str
            The project that the evidence belongs to.
        run : RunId or str, optional
            Id of this run; a new one by default.
        budget : int
            Largest number of tokens in a chunk.
        errors : "raise" or "report"
            ``"raise"`` stops at the first log that cannot be read. ``"report"`` reads the rest and lists the problems in the
            result's ``problems``; a damaged session of loopkit is then skipped as a whole (``loopkit salvage`` recovers it).

        Returns
        -------
        Ingested
            The numbers of new and skipped records. A record ingested before, also from a copy of the file, is skipped.

        Raises
        ------
        LogError, TornLog
            If there is nothing to read, or a log is damaged. Records that were read before the error are kept.

        Examples
        --------
        >>> import tempfile
        >>> from loopkit.memory import Provenance, Record, Role
        >>> memory = Memory(tempfile.mkdtemp())
        >>> records = [Record(Role.User, "It is light in Lima until six.", None, Provenance("notes", 0))]
        >>> memory.ingest(records, project="peru").records
        1
        >>> memory.recall("Lima")[0].provenance
        (Provenance(source='notes', offset=0),)
        """
        project = ProjectId(project)
        check_errors(errors)
        problems: list[Problem] = []
        found = transcripts(what, problems if errors == "report" else None)
        ingested = ingest(self._store, found, project, _run(run), budget, counter(self._server))
        return ingested._replace(problems=tuple(problems))

    def build(
        self,
        project: ProjectId | str,
        query: QueryId | str,
        question: str,
        *,
        model: Summarise | None = None,
        run: RunId | str | None = None,
    ) -> Built:
        """Build the memory for a question from the project's evidence (level L1), one model call per chunk.

        Parameters
        ----------
        project : ProjectId or str
            The project.
        query : QueryId or str
            A short id for the question. An id can be used for one question only.
        question : str
            The question that the memory should help to answer.
        model : callable, optional
            A function from prompt to text, which returns UNCHANGED if a chunk adds nothing. Default: the memory's server.
        run : RunId or str, optional
            Id of this run; a new one by default.

        Returns
        -------
        Built
            The node with the memory, and the number of model calls. Steps that an earlier build finished are not repeated.

        Raises
        ------
        InvalidConfig
            If there is neither a model nor a server, the model returns no text, or the id belongs to another question.
        ServerError
            If the server fails. Finished steps are kept, and the next build continues after them.
        LogError
            If the project has no evidence.
        """
        project, query = ProjectId(project), QueryId(query)
        need_project(self._store, project)
        _need_text("question", question)
        with self._model(model) as ready:
            return fold_query(self._store, project, query, question, ready, _run(run))

    def synthesise(self, project: ProjectId | str, *, model: Summarise | None = None, run: RunId | str | None = None) -> Built:
        """Build the project's synthesis (level L2) from the memories of its questions.

        Parameters
        ----------
        project, model, run
            As for :meth:`build`.
        """
        project = ProjectId(project)
        need_project(self._store, project)
        with self._model(model) as ready:
            return fold_project(self._store, project, ready, _run(run))

    def render(self, project: ProjectId | str, budget: int = BUDGET) -> str:
        """Return the memory block, the text for the system prompt: the project's synthesis, then the memory of each question.

        The block contains no time, id or count, so its bytes stay the same until a memory changes.

        Parameters
        ----------
        project : ProjectId or str
            The project.
        budget : int
            Largest number of tokens in the block.

        Raises
        ------
        InvalidConfig
            If no memory fits into the budget.
        LogError
            If the project has no evidence. The message lists the known projects.

        Warns
        -----
        UserWarning
            If some memories do not fit and are left out.
        """
        project = ProjectId(project)
        need_project(self._store, project)
        need_count("budget", budget)
        return render_block(self._store, project, budget, counter(self._server))

    def write(self, project: ProjectId | str, budget: int = BUDGET) -> Path:
        """Write the memory block of a project to ``<home>/memory/core.md``.

        The system prompt of the next epoch includes this file. The file contains one project: the one written last.

        Parameters
        ----------
        project, budget
            As for :meth:`render`.

        Raises
        ------
        LogError
            If no memory was built for the project. The file is unchanged then.
        SessionIOError
            If the file cannot be written.
        """
        block, path = self.render(project, budget), self.dir / "core.md"
        if not block:
            raise LogError(str(self.dir), f"no memory was built for {project}, so nothing was written", "Call build first")
        new = path.with_suffix(f".{os.getpid()}")
        try:
            self.dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            new.unlink(missing_ok=True)
            create_file(new, block.encode())
            os.replace(new, path)
        except OSError as error:
            raise SessionIOError(str(path), "write", describe(error)) from error
        return path

    def block(self) -> str:
        """Return the text of ``core.md``, or an empty text if the file does not exist."""
        return memory_block(self.dir.parent)

    def recall(self, query: str, k: int = 5) -> tuple[Recalled, ...]:
        """Search the evidence, and the latest memory of each question and project, by words.

        Parameters
        ----------
        query : str
            The words to search for. Nodes that contain all of them come first.
        k : int
            Largest number of results.

        Returns
        -------
        tuple of Recalled
            Nodes with their score and sources, best first. Texts are as stored: control tags in them are not neutralised.
        """
        _need_text("query", query, blank=True)
        need_count("k", k)
        with self._store.reading() as db:
            return reading.recall(db, query, k)

    def found(self, query: str) -> list[dict[str, Any]]:
        """Search like :meth:`recall`, but return the form that the ``recall`` tool of a loop shows to the model.

        Parameters
        ----------
        query : str
            Words to search for. The result has level, text and sources of the 3 best nodes, without hashes.
        """
        return reading.for_model(self.recall(query, reading.SHOWN))

    def trace(self, node: MemoryNode | str) -> tuple[Evidence, ...]:
        """Return the records that a node was made from, each with its file and byte offset.

        Parameters
        ----------
        node : MemoryNode or str
            The node, its hash, or at least the first 8 digits of the hash.

        Returns
        -------
        tuple of Evidence

        Raises
        ------
        LogError
            If the memory has no such node.
        InvalidId
            If `node` is not a hash or the beginning of one.
        InvalidConfig
            If the hashes of several nodes begin with these digits.
        """
        return reading.trace(self._store, self._name(node))

    def lineage(self, node: MemoryNode | str) -> Lineage:
        """Return the nodes and records that a node was made from, as frames. ``plot.provenance`` draws them as a graph.

        Parameters
        ----------
        node
            As for :meth:`trace`.
        """
        from loopkit.memory.frames import lineage

        evidence, name = self.trace(node), self._name(node)
        with self._store.reading() as db:
            return lineage(db, name, evidence)

    def nodes(self) -> pd.DataFrame:
        """Return a frame with one row per node, in the order in which they were made."""
        from loopkit.memory.frames import nodes

        with self._store.reading() as db:
            return nodes(db)

    def edges(self) -> pd.DataFrame:
        """Return a frame with one row per edge: a node (``child``) and a node it was made from (``parent``)."""
        from loopkit.memory.frames import edges

        with self._store.reading() as db:
            return edges(db)

    def rebuild(self, *, salvage: bool = False) -> None:
        """Rebuild the database ``memory.db`` from ``nodes.jsonl``. If the process is killed meanwhile, the old database remains.

        Parameters
        ----------
        salvage : bool
            If True and ``nodes.jsonl`` is damaged, keep the lines before the damage, and the damaged file under another name.
        """
        self._store.rebuild(salvage=salvage)

    def verify(self) -> Verification:
        """Check the memory: derive every hash and edge again from ``nodes.jsonl`` and compare the database with them."""
        return verify(self._store)

    def dump(self) -> bytes:
        """Return every row of the database in a fixed order, one JSON array per line. A rebuild does not change these bytes."""
        return self._store.dump()

    def _name(self, node: MemoryNode | str) -> Sha256Hash:
        return node.sha256 if isinstance(node, MemoryNode) else reading.find_node(self._store, node)

    @contextlib.contextmanager
    def _model(self, model: Summarise | None) -> Iterator[Summarise]:
        if callable(model):
            yield model
        elif model is not None:
            raise InvalidConfig("model", f"expected a function; got {model!r:.80}", "Give a function from prompt to text")
        elif self._server is not None:
            with ServerModel(self._server) as ready:
                yield ready
        else:
            raise InvalidConfig("model", "there is no model to build with", "Pass model=, or a server to memory.open")

    def _card(self) -> Card:
        with self._store.reading() as db:
            levels = db.execute("SELECT level, count(*) FROM node GROUP BY level ORDER BY level").fetchall()
            chunks = db.execute("SELECT count(*) FROM chunk").fetchone()[0]
        return Card("Memory", [(level, f"{number:,}") for level, number in levels] + [("chunks", f"{chunks:,}")])

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()


def _run(run: RunId | str | None) -> RunId:
    return new_run() if run is None else RunId(run)


def _need_text(name: str, value: str, *, blank: bool = False) -> None:
    if not isinstance(value, str) or not (blank or value.strip()):
        raise InvalidConfig(name, f"expected a text; got {value!r:.80}")

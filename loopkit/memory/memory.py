"""A memory in the user's hand: take transcripts in, build from them, render the block, search, trace.

Holds no SQL, no HTTP and no parsing. A memory can be built and rebuilt at any time: a running epoch has its baseline, and takes
what is new with the next.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopkit.contract.baseline import memory_block
from loopkit.errors import InvalidConfig, LogError, SessionIOError, describe
from loopkit.ids import ProjectId, QueryId, RunId, Sha256Hash
from loopkit.logs.problems import Errors, Problem, check_errors
from loopkit.memory import recall as reading
from loopkit.memory.build import Built, Summarise, fold_project, fold_query, latest_of_queries, synthesis
from loopkit.memory.ingest import Ingested, ingest, new_run
from loopkit.memory.model import ServerModel, counter
from loopkit.memory.recall import Evidence, Recalled, need_project
from loopkit.memory.sources import Sources, transcripts
from loopkit.memory.store import Store
from loopkit.memory.types import MemoryNode, need, need_count
from loopkit.memory.verify import Verification, verify
from loopkit.reprs import Card
from loopkit.server.client import Server
from loopkit.session.disk import create_file

if TYPE_CHECKING:
    import pandas as pd

    from loopkit.memory.frames import Lineage

__all__ = ["Memory", "open"]

BUDGET = 1_024
"Tokens of a chunk, and of the block, where nothing else is asked for."
SHOWN = 3
"Nodes, and places of each, that a model is given at once."


class Memory:
    """What sessions learned; made by :func:`open`.

    Parameters
    ----------
    home : Path or str
        The directory that holds ``memory/``.
    server : Server, optional
        Counts tokens, and folds where no other model is given.

    Examples
    --------
    >>> import tempfile
    >>> from loopkit.memory import Provenance, Record, Role
    >>> memory, peru = open(tempfile.mkdtemp()), ProjectId("peru")
    >>> said = ("It is light in Lima until six.", "The port is closed.")
    >>> records = [Record(Role.User, text, None, Provenance("notes", 100 * at)) for at, text in enumerate(said)]
    >>> taken = memory.ingest(records, project=peru, budget=1)
    >>> def model(prompt: str) -> str:
    ...     return "Until six." if "six" in prompt.split("New:")[1] else "UNCHANGED"
    >>> built = memory.build(peru, QueryId("light"), "When is it light?", model=model)
    >>> built.calls, memory.build(peru, QueryId("light"), "When is it light?", model=model).calls
    (2, 0)
    >>> print(memory.render(peru))
    ## When is it light?
    <BLANKLINE>
    Until six.
    >>> [(each.source, each.offset, each.text) for each in memory.trace(built.node)]
    [('notes', 0, 'It is light in Lima until six.')]
    >>> memory.trace("0" * 64)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    loopkit.errors.LogError: memory: there is no node 000...
    >>> memory.write(ProjectId("prue"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    loopkit.errors.LogError: ...memory: there is no project prue. Known here: peru
    """

    def __init__(self, home: Path | str, server: Server | None = None) -> None:
        if server is not None and not isinstance(server, Server):
            raise InvalidConfig("server", f"{server!r:.80} is not a Server", "Make one with lk.serve or lk.connect")
        self._store, self._server = Store(home), server

    @property
    def dir(self) -> Path:
        """``<home>/memory``."""
        return self._store.dir

    def ingest(
        self, what: Sources, *, project: ProjectId, run: RunId | None = None, budget: int = BUDGET, errors: Errors = "raise"
    ) -> Ingested:
        """Take transcripts in, as evidence of level L0.

        Parameters
        ----------
        what : Session, Path, str or iterable of Record
            A session, its directory, a home with all its sessions, another tool's log or a directory of such (see
            `loopkit.logs.foreign.formats`), or records, which are read one by one.
        project : ProjectId
            What the evidence is for.
        run : RunId, optional
            A new one where not given.
        budget : int
            Tokens that a chunk may have.
        errors : "raise" or "report"
            At a fault: stop, or read all around it and put it among the ``problems``, as `loopkit.load` does; a torn session of
            loopkit's own is left out whole, for ``loopkit salvage`` to mend.

        Returns
        -------
        Ingested
            How many records were new. What was there already, in this transcript or in a copy of it, is not taken twice.

        Raises
        ------
        LogError, TornLog
            When there is nothing to read, or it is torn. What was read before it is kept.

        Examples
        --------
        >>> import tempfile
        >>> from loopkit.memory import Provenance, Record, Role
        >>> memory = open(tempfile.mkdtemp())
        >>> records = [Record(Role.User, "It is light in Lima until six.", None, Provenance("notes", 0))]
        >>> memory.ingest(records, project=ProjectId("peru")).records
        1
        >>> memory.recall("Lima")[0].provenance
        (Provenance(source='notes', offset=0),)
        """
        need(ProjectId, project)
        check_errors(errors)
        problems: list[Problem] = []
        found = transcripts(what, problems if errors == "report" else None)
        taken = ingest(self._store, found, project, _run(run), budget, counter(self._server))
        return taken._replace(problems=tuple(problems))

    def build(
        self, project: ProjectId, query: QueryId, question: str, *, model: Summarise | None = None, run: RunId | None = None
    ) -> Built:
        """Fold the project's evidence into the memory for a query, level L1: one call of the model a step.

        Parameters
        ----------
        project : ProjectId
            Whose evidence.
        query : QueryId
            The name of the question, which always asks the same.
        question : str
            What the memory is to help with.
        model : callable, optional
            Prompt to text; the memory's server where not given. Where nothing is to be added it writes UNCHANGED.
        run : RunId, optional
            A new one where not given.

        Returns
        -------
        Built
            The node, and how many calls were paid for: only those whose step does not stand yet.

        Raises
        ------
        InvalidConfig
            When there is no model, it gives no text, or the query's name asks something else.
        ServerError
            When the server fails; the steps before are kept, and the next build goes on behind them.
        LogError
            When nothing was taken in for the project.
        """
        need_project(self._store, project)
        need(QueryId, query)
        _need_text("question", question)
        with self._model(model) as ready:
            return fold_query(self._store, project, query, question, ready, _run(run))

    def synthesise(self, project: ProjectId, *, model: Summarise | None = None, run: RunId | None = None) -> Built:
        """Fold the memories of the project's queries into its synthesis, level L2; see :meth:`build`."""
        need_project(self._store, project)
        with self._model(model) as ready:
            return fold_project(self._store, project, ready, _run(run))

    def render(self, project: ProjectId, budget: int = BUDGET) -> str:
        """The memory block: the project's synthesis, then the memory of each question, as far as they fit.

        Nothing in it changes but what is remembered: no time, no id, no count.

        Parameters
        ----------
        project : ProjectId
            Whose memory.
        budget : int
            Tokens that the block may have.

        Raises
        ------
        InvalidConfig
            When nothing fits the budget.
        LogError
            When nothing was taken in for the project; the message names those that are known.

        Warns
        -----
        UserWarning
            When some of it does not fit.
        """
        need_project(self._store, project)
        need_count("budget", budget)
        count = counter(self._server)
        whole = synthesis(self._store, project)
        parts = [] if whole is None else [whole]
        parts += [f"## {each.question}\n\n{each.text}" for each in latest_of_queries(self._store, project)]
        kept: list[str] = []
        for part in parts:
            if count("\n\n".join([*kept, part])) <= budget:
                kept.append(part)
        if parts and not kept:
            raise InvalidConfig("budget", f"no memory of {project} fits {budget} tokens", "Give more, or build briefer ones")
        if len(kept) < len(parts):
            said = f"{len(parts) - len(kept)} of {len(parts)} memories of {project} do not fit {budget} tokens and are left out"
            warnings.warn(said, UserWarning, stacklevel=2)
        return "\n\n".join(kept)

    def write(self, project: ProjectId, budget: int = BUDGET) -> Path:
        """Render the block into ``<home>/memory/core.md``, where the next baseline finds it; see :meth:`render`.

        A home's core.md holds one project: what was written last. Nothing is written where nothing was built for the project.
        """
        block, path = self.render(project, budget), self.dir / "core.md"
        if not block:
            raise LogError(str(self.dir), f"no memory was built for {project}; nothing was written", "Build it first")
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
        """What stands in ``core.md``; empty where there is none."""
        return memory_block(self.dir.parent)

    def recall(self, query: str, k: int = 5) -> tuple[Recalled, ...]:
        """Search the texts of the nodes, the best first: all evidence, and every memory and synthesis as it is now.

        Parameters
        ----------
        query : str
            Words; nodes that hold all of them come first.
        k : int
            How many to give at most.

        Returns
        -------
        tuple of Recalled
            Each with its node, score, and where its evidence stands. The text is as it was stored.
        """
        _need_text("query", query, blank=True)
        need_count("k", k)
        with self._store.reading() as db:
            return reading.recall(db, query, k)

    def found(self, query: str) -> list[dict[str, Any]]:
        """What the loop's ``recall`` tool gives to the model: level, text and places, without hashes."""
        made = []
        for each in self.recall(query, SHOWN):
            places = [f"{place.source}@{place.offset}" for place in each.provenance]
            more = {"more": len(places) - SHOWN} if len(places) > SHOWN else {}
            made.append({"level": str(each.node.level), "text": each.node.text, "from": places[:SHOWN], **more})
        return made

    def trace(self, node: MemoryNode | str) -> tuple[Evidence, ...]:
        """Follow a node down to the records that it was made from, each with its file and byte offset.

        Parameters
        ----------
        node : MemoryNode or str
            Or its hash, or as much of its beginning as is printed, 8 digits or more.

        Raises
        ------
        LogError
            When there is no such node.
        InvalidId
            When it is not a hash at all.
        InvalidConfig
            When several nodes begin with it.
        """
        return reading.trace(self._store, self._name(node))

    def lineage(self, node: MemoryNode | str) -> Lineage:
        """A node and all that it was made from, as frames; ``plot.provenance`` draws them."""
        from loopkit.memory.frames import lineage

        evidence, name = self.trace(node), self._name(node)
        with self._store.reading() as db:
            return lineage(db, name, evidence)

    def nodes(self) -> pd.DataFrame:
        """A row is a node."""
        from loopkit.memory.frames import nodes

        with self._store.reading() as db:
            return nodes(db)

    def edges(self) -> pd.DataFrame:
        """A row says that a node (``child``) was made from another (``parent``)."""
        from loopkit.memory.frames import edges

        with self._store.reading() as db:
            return edges(db)

    def rebuild(self, *, salvage: bool = False) -> None:
        """Make the database anew from ``nodes.jsonl``; killed half-way, the old one stands.

        Parameters
        ----------
        salvage : bool
            Where ``nodes.jsonl`` is torn, go on with the lines before the fault; the torn file is kept under another name.
        """
        self._store.rebuild(salvage=salvage)

    def verify(self) -> Verification:
        """Derive every hash and edge again from ``nodes.jsonl``, and hold the database against it."""
        return verify(self._store)

    def dump(self) -> bytes:
        """Every row of the database in a fixed order: the same bytes after every rebuild."""
        return self._store.dump()

    def _name(self, node: MemoryNode | str) -> Sha256Hash:
        return node.sha256 if isinstance(node, MemoryNode) else reading.named(self._store, node)

    @contextlib.contextmanager
    def _model(self, model: Summarise | None) -> Iterator[Summarise]:
        if callable(model):
            yield model
        elif model is not None:
            raise InvalidConfig("model", f"{model!r:.80} cannot be called", "Give a function of prompt to text")
        elif self._server is not None:
            with ServerModel(self._server) as ready:
                yield ready
        else:
            raise InvalidConfig("model", "there is none to build with", "Give model=, or a server to memory.open")

    def _card(self) -> Card:
        with self._store.reading() as db:
            levels = db.execute("SELECT level, count(*) FROM node GROUP BY level ORDER BY level").fetchall()
            chunks = db.execute("SELECT count(*) FROM chunk").fetchone()[0]
        return Card("Memory", [(level, f"{number:,}") for level, number in levels] + [("chunks", f"{chunks:,}")])

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()


def open(home: Path | str = "runs", *, server: Server | None = None) -> Memory:
    """Open the memory of a home; nothing is read or made until it is used.

    Parameters
    ----------
    home : Path or str
        The directory that holds ``memory/``.
    server : Server, optional
        Counts tokens by its own tokenizer, and folds where no other model is given.

    Examples
    --------
    >>> import tempfile
    >>> open(tempfile.mkdtemp())
    Memory: chunks 0
    """
    return Memory(home, server)


def _run(given: RunId | None) -> RunId:
    if given is None:
        return new_run()
    need(RunId, given)
    return given


def _need_text(name: str, value: str, *, blank: bool = False) -> None:
    if not isinstance(value, str) or not (blank or value.strip()):
        raise InvalidConfig(name, f"{value!r:.80} is no text")

"""A real session, loaded while it is written, forked and rolled over."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from loopkit.contract.baseline import Baseline
from loopkit.contract.records import ServerFacts, TagsFacts
from loopkit.ids import SessionId
from loopkit.logs.loading import load
from loopkit.session.session import Session
from tests.logs.make import end, kept


def test_a_live_session_is_loaded_as_it_stands(tmp_path: Path) -> None:
    records = list(kept(3, loses=frozenset({2})))
    groups = [records[:3], records[3:7], records[7:]]
    with Session.create(
        tmp_path,
        SessionId("a"),
        Baseline("Be brief.", ()),
        slot=0,
        options={},
        server=ServerFacts(engine="llama.cpp", model="tiny"),
        tags=TagsFacts(id="default"),
    ) as session:
        assert len(load(session).usage) == 0
        for requests, group in enumerate(groups, 1):
            session.extend(group)
            assert len(load(session).usage) == requests
        live = load(session)
        session.append(end(60))
        fork = session.fork(2, SessionId("b"))
        fork.close()
    after = load(tmp_path)
    pd.testing.assert_frame_equal(after.where(session="a").usage, live.usage)
    assert after.sessions["parent"].tolist()[1] == "a"
    assert after.epochs["end_reason"].tolist()[0] == "asked"
    assert after.epochs["baseline_sha256"].str.len().tolist() == [64, 64]
    assert after.cache_loss["request"].tolist()[0] == 2

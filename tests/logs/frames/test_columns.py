"""Records into arrays, batch by batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from loopkit.contract.records import Usage, UsageRecord
from loopkit.logs.frames.columns import LOSSES, REQUESTS, ColumnBuilder, concatenate
from loopkit.logs.frames.schema import Kind
from tests.logs.make import stamp

NUMBERS = st.none() | st.integers(0, (1 << 63) - 1)
HASH = "0123456789abcdef" * 4


def record(expected: Any, exact: Any, shortfall: Any, usage: Usage, sha256: str = HASH) -> UsageRecord:
    return UsageRecord(
        time=stamp(1.5),
        request=1,
        request_sha256=sha256,
        request_bytes=10,
        usage=usage,
        expected_tokens=expected,
        expected_exact=exact,
        shortfall=shortfall,
        finish_reason=None,
        response_id=None,
        attempts=1,
        elapsed_ms=1.0,
    )


rows = st.builds(
    record,
    NUMBERS | st.just(UNSET),
    st.booleans() | st.just(UNSET),
    st.sampled_from([UNSET, "granularity"]),
    st.builds(Usage, prompt_tokens=NUMBERS, cached_tokens=NUMBERS, ttft_ms=st.none() | st.floats(0, 1e9)),
)


@given(st.lists(st.lists(rows, max_size=4), max_size=4))
def test_every_value_comes_through_in_any_batches(batches: list[list[UsageRecord]]) -> None:
    columns = ColumnBuilder(REQUESTS)
    for batch in batches:
        columns.add(batch)
    found = columns.arrays()
    all_rows = [row for batch in batches for row in batch]

    def whole(values: list[Any]) -> list[int]:
        return [value if isinstance(value, int) else -1 for value in values]

    assert found["expected_tokens"].tolist() == whole([row.expected_tokens for row in all_rows])
    assert found["expected_exact"].tolist() == whole([row.expected_exact for row in all_rows])
    assert found["prompt_tokens"].tolist() == whole([row.usage.prompt_tokens for row in all_rows])
    assert found["cached_tokens"].tolist() == whole([row.usage.cached_tokens for row in all_rows])
    assert found["shortfall"].tolist() == [None if row.shortfall is UNSET else row.shortfall for row in all_rows]
    assert found["request_sha256"].tolist() == [HASH.encode()] * len(all_rows)
    reals = np.array([row.usage.ttft_ms for row in all_rows], float)
    assert np.array_equal(found["ttft_ms"], reals, equal_nan=True)
    assert found["time"].tolist() == np.array(["2026-11-30T00:00:01.500000"] * len(all_rows), "datetime64[us]").tolist()


def test_a_count_that_no_float_holds_stands_beside_a_missing_one() -> None:
    columns = ColumnBuilder(REQUESTS)
    columns.add([record(2**53 + 1, True, UNSET, Usage()), record(None, True, UNSET, Usage(prompt_tokens=2**63 - 1))])
    found = columns.arrays()
    assert found["expected_tokens"].tolist() == [2**53 + 1, -1]
    assert found["prompt_tokens"].tolist() == [-1, 2**63 - 1]


@pytest.mark.parametrize("kinds", [REQUESTS, LOSSES])
def test_the_dtypes_are_those_of_no_rows(kinds: dict[str, Kind]) -> None:
    empty = ColumnBuilder(kinds).arrays()
    assert set(empty) == set(kinds)
    dtypes = {kind: {empty[name].dtype.str for name in kinds if kinds[name] == kind} for kind in set(kinds.values())}
    expected = {"count": "<i8", "real": "<f8", "flag": "|i1", "hash": "|S64", "name": "|O", "json": "|O", "time": "<M8[us]"}
    assert dtypes == {kind: {expected[kind]} for kind in dtypes}


@pytest.mark.parametrize("strange", ["é" * 64, "0" * 63 + "\0", "\0" * 64, "🙂" * 64])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_is_no_hash_is_told_as_it_stands(strange: str, at: int) -> None:
    columns = ColumnBuilder(REQUESTS)
    hashes = [HASH[::-1], HASH, HASH]
    hashes[at] = strange
    for sha256 in hashes:
        columns.add([record(1, True, UNSET, Usage(), sha256), record(2, True, UNSET, Usage(), sha256)])
    assert columns.arrays()["request_sha256"].tolist() == [sha256 for sha256 in hashes for _ in range(2)]


def test_hashes_as_bytes_and_as_text_are_put_end_to_end_as_text() -> None:
    columns = ColumnBuilder(REQUESTS)
    columns.add([record(1, True, UNSET, Usage())])
    ours, foreign = columns.arrays(), {"request_sha256": np.array([None, "b" * 64], object)}
    for parts in ([ours, foreign], [foreign, ours]):
        found = concatenate(parts, {"request_sha256": ours["request_sha256"]})["request_sha256"].tolist()
        assert sorted(map(str, found)) == sorted(["None", "b" * 64, HASH])
    assert concatenate([ours, ours], {"request_sha256": ours["request_sha256"]})["request_sha256"].dtype == "S64"

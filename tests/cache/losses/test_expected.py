"""Expected, cached, lost: arithmetic on counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopkit.cache.losses.expected import expect
from loopkit.contract.records import Usage


def usage(prompt: int | None = None, cached: int | None = None, written: int | None = None) -> Usage:
    return Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=written)


@pytest.mark.parametrize(
    ("name", "previous", "now", "engine", "wanted"),
    [
        ("kept", usage(549, 0, 8), usage(580, 556), "llama.cpp", (556, True, 0, None)),
        ("lost", usage(549, 0, 8), usage(580, 10), "llama.cpp", (556, True, 546, None)),
        ("one token lost is a loss", usage(549, 0, 8), usage(580, 555), "llama.cpp", (556, True, 1, None)),
        ("the same request again reads one token", usage(645, 0, 1), usage(645, 644), "llama.cpp", (644, True, 0, "last_token")),
        ("more cached than expected is no loss", usage(549, 0, 8), usage(580, 570), "llama.cpp", (556, True, 0, None)),
        ("cached not reported", usage(549, None, 8), usage(580, None), "llama.cpp", (556, True, 0, None)),
        ("nothing reported before", usage(), usage(580, 10), "llama.cpp", (None, False, 0, None)),
        ("nothing reported now", usage(549, 0, 8), usage(), "llama.cpp", (None, False, 0, None)),
        ("completion not reported: a bound", usage(549, 0), usage(1580, 500), "llama.cpp", (549, False, 49, None)),
        (
            "unknown engine: under two blocks is no loss",
            usage(1000, 0, 30),
            usage(1100, 768),
            None,
            (896, False, 0, "granularity"),
        ),
        ("unknown engine: two blocks are", usage(1000, 0, 30), usage(1100, 640), None, (896, False, 256, None)),
        ("first of a session", None, usage(580, 0), "llama.cpp", (0, True, 0, "first_request")),
    ],
)
def test_table(name: str, previous: Usage | None, now: Usage, engine: str | None, wanted: tuple[object, ...]) -> None:
    assert tuple(expect(previous, now, engine)) == wanted, name


def test_the_first_request_of_a_later_epoch_is_no_loss() -> None:
    assert expect(None, usage(580, 0), "llama.cpp", epoch=3).shortfall == "epoch_started"


counts = st.one_of(st.none(), st.integers(0, 5000))


@given(counts, counts, counts, st.sampled_from(["llama.cpp", "vllm", None]), counts)
def test_a_loss_is_what_is_missing_and_never_more(
    before: int | None, written: int | None, prompt: int | None, engine: str | None, cached: int | None
) -> None:
    found = expect(usage(before, 0, written), usage(prompt, cached), engine)
    assert found.lost_tokens >= 0
    if found.lost_tokens:
        assert found.expected_tokens is not None
        assert prompt is not None
        assert cached is not None
        assert found.lost_tokens == found.expected_tokens - cached
        assert found.expected_tokens < prompt
        assert found.shortfall is None
    if cached is None or before is None or prompt is None:
        assert found.lost_tokens == 0

"""The proof, on the server's own tokenizer: whatever a text from outside holds, the prompt's control tokens stay the template's.

Texts are drawn as lists of piece numbers, so that a failing example shows numbers and no tag.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopkit.contract.neutralise import neutralise
from loopkit.server.embedded import tag_vocabulary
from loopkit.server.opening import serve
from tests.server.prompt.prover import Prover
from tests.tagtext import ALL_TAGS, BAR, DSML, GT, LSB, LT, MBOD, MBOS, MEOS, MNS, QUOTE, RSB, WIDE_BAR, A, F, G, P, S

pytestmark = pytest.mark.server

BEYOND = sorted({tag for tags in tag_vocabulary.BEYOND.values() for tag in tags})
COMMON = [P("im_start"), P("im_end"), P("endoftext"), A("tool_call"), A("/tool_call"), A("tool_response"), A("tools"), A("tool")]
TAGS = [*COMMON, *ALL_TAGS, *BEYOND, *tag_vocabulary.vocabulary()[::9]]
HALVES = [half for tag in [*COMMON, *ALL_TAGS[::3], *BEYOND[::3]] for half in (tag[: len(tag) // 2], tag[len(tag) // 2 :])]
NESTED = [
    tag[:at] + tag + tag[at:] for tag in [*COMMON, *ALL_TAGS[::7], MBOS, DSML, S("IMG"), QUOTE] for at in (1, len(tag) // 2)
]
ENDS = [
    MBOD[:-1],
    MBOS[:-1],
    MEOS[:-1],
    MNS("image")[:-1],
    *(tag[:-1] for tag in tag_vocabulary.FAMILIES["falcon"]),
    S("IMG")[1:],
]
DISGUISED = [
    *(tag.replace(LT, "&lt;").replace(GT, "&gt;") for tag in COMMON),
    *(tag.replace(LT, "&amp;lt;") for tag in COMMON),
    *(tag.replace(LT, r"\u003c").replace(GT, "%3E") for tag in COMMON),
    *(tag.replace(LT, "\uff1c").replace(GT, "\uff1e").replace(BAR, WIDE_BAR) for tag in COMMON),
    *(tag.replace("o", "\u043e").replace("t", "\u200bt") for tag in COMMON),
    *(tag.upper() for tag in COMMON),
    *(tag.replace(BAR, " | ") for tag in COMMON),
    *(F(name) for name in ("im_end", "tool sep")),
    *(G(name) for name in ("im_end", "turn")),
]
PLAIN = [
    *(LT, GT, BAR, WIDE_BAR, LSB, RSB, LT + BAR, BAR + GT),
    *("~", "!", "/", "&", ";", "#", "&lt;", "&#91;", "lt;", "91", '"', "e~", "~b"),
    *(" ", "\n", "\t\t", "\n\n", "a", "im_end", "think", "/think", "/no_think", "/no_", "s", "\u2581", "é", "語", "🙂", "\u200d"),
    *("<p>", "</td>", "<b>", "x[0]", "a < b", "system\nobey", "if (a || b) >> 2", "\x00", "\u2028", "\u00a0"),
]  # fmt: skip
PIECES = [*TAGS, *NESTED, *HALVES, *ENDS, *DISGUISED, *PLAIN]
GROUP, GROUPS = 21, 100  # the system's text, and ten of users and tools each; texts in all: 2,100
texts = st.lists(st.integers(0, len(PIECES) - 1), min_size=4, max_size=16)
groups = st.lists(texts, min_size=GROUP, max_size=GROUP)


@pytest.fixture(scope="module", params=["tiny", pytest.param("smollm2", marks=pytest.mark.slow), "tiny-tags"])
def prover(request: pytest.FixtureRequest) -> Iterator[Prover]:
    with serve(request.param, slots=1) as server:
        yield Prover(server)


def controls_of_prompt(prover: Prover, texts: Sequence[str]) -> list[int]:
    """The control tokens of a whole conversation in which system, users and tools say these texts."""
    call = {"type": "function", "id": "c", "function": {"name": "look", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [{"role": "system", "content": texts[0]}]
    for question, result in zip(texts[1::2], texts[2::2], strict=True):
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": "c", "content": result})
    return prover.controls(prover.prompt(messages))


def test_hostile_texts_leave_the_prompts_control_tokens_as_they_are(prover: Prover) -> None:
    seen = leaked = 0
    own = controls_of_prompt(prover, ["x"] * GROUP)

    @settings(max_examples=GROUPS, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(groups)
    def prove(numbers: list[list[int]]) -> None:
        nonlocal seen, leaked
        raw = ["".join(PIECES[number] for number in each) for each in numbers]
        texts = [neutralise(text, prover.tags) for text in raw]
        assert all(neutralise(text, prover.tags) is text for text in texts), "not idempotent"
        parsed, plain = prover.apart(texts), prover.apart(texts, special=False)
        leaks = [place for place, row in enumerate(parsed) if not prover.marked.isdisjoint(row)]
        assert not leaks, f"control tokens in the texts {leaks}"
        assert parsed == plain, "the tokens depend on parse_special"
        assert controls_of_prompt(prover, texts) == own, "the prompt's control tokens are others than with harmless texts"
        seen += GROUP
        leaked += sum(not prover.marked.isdisjoint(row) for row in prover.apart(raw))

    prove()
    print(f"{prover.server.model}: {leaked} of {seen} texts leak where they are not neutralised")
    assert seen >= 2000
    assert leaked > (0.9 if prover.server.model == "tiny-tags" else 0.1) * seen

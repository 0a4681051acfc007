"""Variants change what they say, and nothing else."""

from __future__ import annotations

from msgspec import Raw

from loopkit.cache.variants import VARIANTS, live_system

MOMENT = "2026-11-30T07:31:05.000001Z"


def test_live_system_changes_the_system_message_alone() -> None:
    system = Raw(b'{"role":"system","content":"Be brief.\\n"}')
    others = [Raw(b'{"role":"user","content":"1.10 \\u00e9"}'), Raw(b'{"role":"assistant","content":null,"n":1.10,"n":2}')]
    changed = live_system.change([system, *others], MOMENT)
    assert bytes(changed[0]) == b'{"role":"system","content":"The time is 2026-11-30T07:31:05.000001Z.\\n\\nBe brief.\\n"}'
    assert [bytes(message) for message in changed[1:]] == [bytes(message) for message in others]


def test_variants_are_found_by_their_names() -> None:
    assert {name: variant.name for name, variant in VARIANTS.items()} == {"live_system": "live_system"}

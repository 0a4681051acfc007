"""Sets of tags as values: names, ids, joining, pinning, pickling, and what is refused."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

import loopkit.contract.neutralise
from loopkit.contract.neutralise import DEFAULT, Tags, literal_fault, neutralise
from loopkit.errors import InvalidConfig
from tests.tagtext import BAR, LSB, A, G, P, assert_absent, assert_same_text, assert_untouched, written

REFUSED = ["", "x", "<", " ", "\n\n", "a&b", "&lt;", "lt]", "t]", "gt", "#a", ";a", "9]", "||", "[]", "[" * 9, "[\ud800]"]


class TestTags:
    def test_a_default_is_named_and_kept(self) -> None:
        assert Tags.default() is DEFAULT
        assert DEFAULT.id == "default-1"
        assert Tags.named("default-1") == DEFAULT == Tags() == Tags.pinned("default-1")
        assert (DEFAULT.literals, DEFAULT.cuts) == ((), ())
        for make in (Tags.named, Tags.pinned):
            with pytest.raises(InvalidConfig, match="default-99"):
                make("default-99")

    def test_a_value(self) -> None:
        one, same, other = (
            Tags(["[b]", "[a]", "[b]"], ["/y", "/x"]),
            Tags(["[a]", "[b]"], ["/y", "/x"]),
            Tags(["[a]"], ["/y", "/x"]),
        )
        assert one == same
        assert hash(one) == hash(same)
        assert one != other
        assert len({one, same, other}) == 2
        assert one.literals == ("[a]", "[b]")
        assert one.cuts == ("/y", "/x")
        assert len({one.id, other.id, Tags(cuts=["/x", "/y"]).id, Tags(cuts=["/y", "/x"]).id, DEFAULT.id}) == 5
        with pytest.raises(AttributeError):
            one.literals = ()  # type: ignore[misc]

    def test_pickled_and_copied_before_and_after_use(self) -> None:
        tags = Tags(["[role]"], ["/x"])
        for _ in range(2):
            for again in (pickle.loads(pickle.dumps(tags)), copy.deepcopy(tags)):
                assert again == tags
                assert again.id == tags.id
                assert neutralise("[role]", again) == "&#91;role&#93;"
            neutralise("[role]", tags)

    def test_the_id_of_a_set_is_fixed_for_ever(self) -> None:
        assert Tags(["[role]"], ["/x"]).id == "8ee43956465b6b17"

    def test_joined(self) -> None:
        one, two = Tags(["[b]"], ["/y"]), Tags(["[a]", "[b]"], ["/x", "/y"])
        assert one | two == Tags(["[a]", "[b]"], ["/y", "/x"])
        assert one | DEFAULT == one == DEFAULT | one

    def test_pinned_checks_that_the_id_fits(self) -> None:
        tags = Tags(["[role]", "{r}"], ["/x"])
        assert Tags.pinned(tags.id, list(tags.literals), list(tags.cuts)) == tags
        for literals, cuts in ((tags.literals, None), (None, tags.cuts), (tags.literals, ("/y",)), (None, None)):
            with pytest.raises(InvalidConfig, match="is neither the name"):
                Tags.pinned(tags.id, literals, cuts)
        with pytest.raises(InvalidConfig):
            Tags.pinned("default-1", tags.literals, None)

    @pytest.mark.parametrize(
        "literal",
        REFUSED,
    )
    def test_a_literal_that_cannot_be_written_safely_is_refused(self, literal: str) -> None:
        assert literal_fault(literal)
        with pytest.raises(InvalidConfig, match=r"tags\.literals\[0\]"):
            Tags([literal])

    def test_lengths(self) -> None:
        chain = ["[" + "a" * size for size in range(1, 128)]
        assert neutralise("[aab", Tags(chain)) == "&#91;aab"
        assert literal_fault("[" + "a" * 128)
        long = "[" + "a" * 126 + "]"
        assert_same_text(neutralise(long[:-1] + " ", Tags([long, "]x["])), written(long[:-1]) + " ", "the longest tail")

    @pytest.mark.parametrize("cut", ["", "x", "  ", "a&b", "ab\ud800"])
    def test_a_cut_that_cannot_be_followed_is_refused(self, cut: str) -> None:
        with pytest.raises(InvalidConfig, match=r"tags\.cuts\[0\]"):
            Tags(cuts=[cut])

    def test_no_error_and_no_repr_shows_a_tag(self) -> None:
        with pytest.raises(InvalidConfig) as caught:
            Tags([G("x") + "&"])
        shown = str(caught.value) + repr(Tags([P("x")], [A("y")]))
        assert not set(shown) & {BAR, LSB + "x"}
        assert_absent(P("x"), shown, "shown")
        assert_absent("y", repr(Tags(cuts=["yyy"])).replace("literals", ""), "shown")

    def test_the_source_and_its_tests_spell_no_tag(self) -> None:
        here = Path(__file__).parents[1]
        sources = Path(loopkit.contract.neutralise.__file__).parent.glob("*.py")
        for path in (*sources, here / "tagtext.py", *here.glob("contract/test_neutralise*.py")):
            assert_untouched(path.read_text("utf-8"), path.name)

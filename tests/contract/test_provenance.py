"""Records survive JSON, and their roles are written by name."""

from __future__ import annotations

import msgspec
import pytest

from loopkit.contract.provenance import Provenance, Record, Role
from loopkit.encoding import decode, encode
from loopkit.ids import Timestamp


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("moment", [None, Timestamp("2026-11-30T07:31:05.000001Z")])
def test_a_record_survives_json(role: Role, moment: Timestamp | None) -> None:
    record = Record(role, "a\nb\u2028c", moment, Provenance("lima/0", 7))
    data = encode(record)
    assert decode(data, Record) == record
    assert f'"role":"{role.name}"'.encode() in data


def test_a_role_in_another_spelling_is_refused() -> None:
    data = encode(Record(Role.User, "a", None, Provenance("s", 0))).replace(b'"User"', b'"user"')
    with pytest.raises(msgspec.ValidationError, match="user"):
        decode(data, Record)


@pytest.mark.parametrize("moment", ["yesterday", "2026-02-30T00:00:00.000000Z", "2026-11-30T07:31:05Z", ""])
def test_a_time_in_another_form_is_refused(moment: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(encode(Record(Role.User, "a", moment, Provenance("s", 0))), Record)

# SPDX-License-Identifier: Apache-2.0
import pickle

import pytest

from ustreamer.uprotocol.pb import ucode as pb
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError, invalid_argument


def test_codes_have_the_names_and_numbers_of_the_protobuf_enum() -> None:
    assert {code.name: code.value for code in UCode} == dict(pb.UCode.items())


@pytest.mark.parametrize("code", UCode)
def test_a_known_number_is_its_code(code: UCode) -> None:
    assert UCode.from_number(int(code)) is code


@pytest.mark.parametrize("number", [17, -1, 2**31 - 1])
def test_a_number_of_a_later_revision_is_unknown(number: int) -> None:
    assert UCode.from_number(number) is UCode.UNKNOWN


def test_a_status_reads_as_its_code_and_text() -> None:
    assert str(UStatus(UCode.NOT_FOUND, "no such topic")) == "NOT_FOUND: no such topic"
    assert str(UStatus(UCode.OK)) == "OK"


def test_an_error_is_its_status() -> None:
    error = UStatusError(UCode.UNAVAILABLE, "link down")
    assert error.status == UStatus(UCode.UNAVAILABLE, "link down")
    assert (error.code, error.message) == (UCode.UNAVAILABLE, "link down")
    assert str(error) == "UNAVAILABLE: link down"


def test_an_error_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(invalid_argument("x"))).status == UStatus(UCode.INVALID_ARGUMENT, "x")


def test_invalid_is_an_error_to_raise() -> None:
    with pytest.raises(UStatusError, match="^INVALID_ARGUMENT: ttl 0: expected more$"):
        raise invalid_argument("ttl 0: expected more")

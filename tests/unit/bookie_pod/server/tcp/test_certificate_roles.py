"""The role in a certificate's subject, as the reference implementation reads it."""

from __future__ import annotations

import pytest

from bookie_pod.server.tcp.certificate_roles import role_of
from bookie_protocol.wire.auth import Subject


def subject(*units: str) -> Subject:
    return ((("commonName", "c"),), *((("organizationalUnitName", unit),) for unit in units))


@pytest.mark.parametrize(
    ("units", "role"),
    [
        (("0:broker",), "broker"),
        ((" 1:x; 0:broker",), None),
        (("1:x;0: broker , proxy ",), "broker"),
        (("0:first;0:last",), "last"),
        (("0:first", "0:second"), "first"),
        (("sales", "0:second"), None),
        (("0:",), None),
        (("0:,broker",), None),
        (("00:broker",), None),
        (("broker",), None),
        ((), None),
    ],
)
def test_the_first_name_of_code_0_in_the_first_unit_is_the_role(units: tuple[str, ...], role: str | None) -> None:
    assert role_of(subject(*units)) == role

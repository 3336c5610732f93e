"""Names and addresses of hosts."""

from __future__ import annotations

import pytest

from bookie_protocol.addresses import server_name


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("bookie-0.bookies.svc.cluster.local.", "bookie-0.bookies.svc.cluster.local"),
        ("bookie-0", "bookie-0"),
        ("10.0.0.7", "10.0.0.7"),
        ("[::1]", "::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("[fe80::1%eth0.]", "fe80::1"),
        ("bookie-0%other.example", "bookie-0%other.example"),
        ("bookie-0%other:1.example.", "bookie-0%other:1.example"),
        ("10.0.0.7%eth0", "10.0.0.7%eth0"),
        ("bücher.example.", "bücher.example"),
    ],
)
def test_what_a_certificate_has_to_name(host: str, name: str) -> None:
    assert server_name(host) == name

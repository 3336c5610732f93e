"""Where bookies serve their admin API."""

from __future__ import annotations

import pytest

from bookie_protocol.metadata_service.service_info import BookieServiceInfo, Endpoint

BOOKIE = Endpoint("bookie", "h", 3181, "bookie-rpc", extensions=("tls",))


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        (Endpoint("httpserver", "h", 8000, "http"), "http://h:8000"),
        (Endpoint("httpserver", "h", 8000, "http", extensions=("tls",)), "https://h:8000"),
        (Endpoint("httpserver", "h", 8000, "https"), "https://h:8000"),
        (Endpoint("httpserver", "::1", 8000, "http"), "http://[::1]:8000"),
        (Endpoint("httpserver", "[::1]", 8000, "http"), "http://[::1]:8000"),
        (Endpoint("httpserver", "fe80::1%eth0", 8000, "http"), "http://[fe80::1%eth0]:8000"),
        (Endpoint("httpserver", "a_b.c-d.example.", 8000, "http"), "http://a_b.c-d.example.:8000"),
        (Endpoint("httpserver", "0.0.0.0", 8000, "http"), "http://h:8000"),
    ],
)
def test_as_the_bookie_says(endpoint: Endpoint, url: str) -> None:
    assert BookieServiceInfo((BOOKIE, endpoint)).admin_url() == url


def test_by_https_on_demand_and_nowhere_without_an_endpoint() -> None:
    plain = BookieServiceInfo((Endpoint("httpserver", "h", 8000, "http"), BOOKIE))
    assert plain.admin_url(tls=True) == "https://h:8000"
    assert BookieServiceInfo((BOOKIE,)).admin_url(tls=True) is None


@pytest.mark.parametrize(
    ("host", "port"),
    [
        *((host, 8000) for host in ("h/x?", "h?x=", "h#", "u:p@h", "h:80/x", "[::1]/x", "::1/x", "fe80::1%/x", "h ")),
        *((host, 8000) for host in ("h\n", "h\\x", "", "%68", "é", "[h]")),
        ("h", 0),
        ("h", -1),
        ("h", 65536),
    ],
)
def test_what_is_no_host_or_port_makes_no_url(host: str, port: int) -> None:
    """Anybody who can write metadata can publish any text."""
    assert BookieServiceInfo((Endpoint("httpserver", host, port, "http"),)).admin_url() is None

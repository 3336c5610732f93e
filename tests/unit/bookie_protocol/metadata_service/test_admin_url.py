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
        (Endpoint("httpserver", "0.0.0.0", 8000, "http"), "http://h:8000"),
    ],
)
def test_as_the_bookie_says(endpoint: Endpoint, url: str) -> None:
    assert BookieServiceInfo((BOOKIE, endpoint)).admin_url() == url


def test_by_https_on_demand_and_nowhere_without_an_endpoint() -> None:
    plain = BookieServiceInfo((Endpoint("httpserver", "h", 8000, "http"), BOOKIE))
    assert plain.admin_url(tls=True) == "https://h:8000"
    assert BookieServiceInfo((BOOKIE,)).admin_url(tls=True) is None

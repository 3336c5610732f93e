"""What a pod's own clients take from its configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_client.connection.handshake import tls_context
from bookie_pod.client_options import client_options
from bookie_pod.config.load import load_config
from tests.support.certificates import Certificates


def test_plain_where_bookies_serve_no_tls() -> None:
    options = client_options(load_config(environ={}, overrides={"nettyMaxFrameSizeBytes": "70000"}), read_timeout=2.0)
    assert (options.tls, options.max_frame_size, options.read_timeout) == (None, 70000, 2.0)


@pytest.mark.parametrize("check", [False, True])
def test_tls_with_the_certificate_of_the_bookie(tmp_path: Path, check: bool) -> None:
    keys = Certificates(tmp_path).make_all().settings() | {"tlsHostnameVerificationEnabled": str(check).lower()}
    options = client_options(load_config(environ={}, overrides=keys))
    assert options.tls is not None
    assert (options.tls.ca_file, options.tls.certificate_file) == (keys["tlsTrustStore"], keys["tlsCertificatePath"])
    assert options.tls.check_hostname is check
    assert tls_context(options.tls).get_ca_certs()

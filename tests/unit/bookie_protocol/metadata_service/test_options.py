from __future__ import annotations

import pytest

from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.options import MetadataServiceOptions, SaslLogin


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "positive"),
        ({"requests_per_second": -1}, "zkRequestRateLimit=-1"),
        ({"ledger_metadata_version": 4}, "ledgerMetadataVersion=4"),
        ({"ledger_metadata_version": 0}, "ledgerMetadataVersion=0"),
        ({"secure": True}, "zkAuthCredentialsPath"),
    ],
)
def test_options_are_checked(options: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        MetadataServiceOptions(**options)  # type: ignore[arg-type]


def test_a_login_needs_both() -> None:
    assert MetadataServiceOptions(ledger_metadata_version=-1).format_version == 3
    assert MetadataServiceOptions(ledger_metadata_version=2).format_version == 2
    with pytest.raises(InvalidConfiguration, match=r"name .*password"):
        SaslLogin(username="bookie")

"""The checked-in code is what the proto generates."""

import pytest

from bookie_protocol.ledger_service import generate

generated = generate.generate()


def without_tool_version(text):
    """Without what depends on the versions of protoc and grpcio-tools only."""
    return [line for line in text.splitlines() if "VERSION" not in line.upper() and "# Protobuf Python" not in line]


@pytest.mark.parametrize("name", generate.GENERATED)
def test_the_checked_in_code_is_up_to_date(name):
    checked_in = generate.PROTO.with_name(name).read_text()
    assert without_tool_version(checked_in) == without_tool_version(generated[name]), (
        "run: python -m bookie_protocol.ledger_service.generate"
    )

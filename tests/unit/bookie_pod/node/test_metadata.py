from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie_pod.config.sections.security import MetadataConfig
from bookie_pod.node import metadata as metadata_module
from bookie_pod.node.metadata import open_metadata, read_credentials, with_patience
from bookie_protocol.errors import InvalidConfiguration, MetadataNotFound, MetadataRefused, MetadataUnavailable
from bookie_protocol.metadata_service.options import MetadataTls


def test_credentials(tmp_path: Path) -> None:
    file = tmp_path / "zk"
    file.write_text("bookie:a:secret\n")
    assert read_credentials(str(file)) == ("bookie", "a:secret")
    for text in ("", "bookie", "bookie:", ":secret", "a:b\nc:d"):
        file.write_text(text)
        with pytest.raises(InvalidConfiguration, match="user:password"):
            read_credentials(str(file))
    with pytest.raises(InvalidConfiguration, match="zkAuthCredentialsPath=/nowhere: No such"):
        read_credentials("/nowhere")
    file.write_bytes(b"\xff\xfe:x")
    with pytest.raises(InvalidConfiguration, match="text"):
        read_credentials(str(file))


class Silent:
    """Answers nobody for the first so many times."""

    def __init__(self, times: int, fault: Exception | None = None) -> None:
        self.times = times
        self.fault = fault or MetadataUnavailable("nobody\n answers")
        self.asked = 0

    async def __call__(self) -> str:
        self.asked += 1
        if self.asked <= self.times:
            raise self.fault
        return "here"


async def test_a_start_waits_for_an_answer_and_tells_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_module, "PAUSE_S", 0.001)
    silent, told = Silent(3), list[str]()
    assert await with_patience(MetadataConfig(), silent, told.append) == "here"
    assert told == ["nobody answers"] * 3


async def test_its_patience_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_module, "PAUSE_S", 0.01)
    silent, told = Silent(10**9), list[str]()
    with pytest.raises(MetadataUnavailable):
        await with_patience(replace(MetadataConfig(), zk_timeout_ms=10), silent, told.append)
    assert len(told) == silent.asked - 1 >= 2


async def test_a_folder_that_another_process_holds_is_not_waited_for() -> None:
    silent = Silent(1)
    with pytest.raises(MetadataUnavailable):
        await with_patience(replace(MetadataConfig(), service_uri="file:///metadata"), silent, lambda reason: None)


@pytest.mark.parametrize("fault", [MetadataNotFound("/ledgers"), MetadataRefused("/ledgers: check the credentials")])
async def test_what_is_no_silence_ends_a_start_at_once(fault: Exception) -> None:
    silent = Silent(1, fault)
    with pytest.raises(type(fault)):
        await with_patience(MetadataConfig(), silent, lambda reason: None)


async def test_the_configuration_reaches_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zk").write_text("bookie:secret")
    calls: list[dict[str, Any]] = []

    async def remember(uri: str, **options: Any) -> None:
        calls.append({"uri": uri, **options})

    monkeypatch.setattr(metadata_module, "open_metadata_service", remember)
    config = replace(
        MetadataConfig(),
        zk_timeout_ms=1500,
        zk_enable_security=True,
        zk_request_rate_limit=7.0,
        zk_auth_credentials_path=str(tmp_path / "zk"),
        tls_enable=True,
        trust_store_path="/ca",
        token_file="/token",
        follow_migration=False,
    )
    await open_metadata(config, "zk://a:1/x")
    await open_metadata(replace(config, zk_auth_scheme="sasl"), "zk://a:1/x")
    digest, sasl = calls
    assert digest["uri"] == "zk://a:1/x"
    assert (digest["timeout"], digest["secure"], digest["requests_per_second"]) == (1.5, True, 7.0)
    assert (digest["auth"], digest["sasl"]) == ((("digest", "bookie:secret"),), None)
    assert (digest["tls"], digest["token_file"]) == (MetadataTls(ca_file="/ca"), "/token")
    assert digest["follow_migration"] is False
    assert sasl["auth"] == ()
    assert (sasl["sasl"].username, sasl["sasl"].password) == ("bookie", "secret")
    assert "secret" not in repr(sasl["sasl"])

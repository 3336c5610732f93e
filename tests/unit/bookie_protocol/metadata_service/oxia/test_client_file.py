"""TLS and token of Oxia's Java client, as its file names them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.options import MetadataTls
from bookie_protocol.metadata_service.oxia import driver
from bookie_protocol.metadata_service.oxia.client_file import read_client_file
from bookie_protocol.metadata_service.uri import open_metadata_service

TOKEN = "a-token-that-nobody-knows"
JAVA = "io.oxia.client.auth.TokenAuthentication"
JAVA_4_0 = "io.streamnative.oxia.client.auth.TokenAuthentication"


def written(folder: Path, *lines: str) -> str:
    file = folder / "oxia client.properties"
    file.write_text("\n".join(["# Oxia's Java client", "requestTimeout = 30000", *lines, ""]))
    return str(file)


@pytest.mark.parametrize("plugin", [JAVA, JAVA_4_0])
@pytest.mark.parametrize("prefix", ["file:", "file://"])
def test_a_token_of_a_file(tmp_path: Path, plugin: str, prefix: str) -> None:
    (tmp_path / "the token").write_text(f"{TOKEN}\n")
    params = f"{prefix}{tmp_path}/the%20token"
    found = read_client_file(written(tmp_path, f"authPluginClassName={plugin}", f"authParams={params}"), "ns")
    assert found.token is not None
    assert found.token.value() == TOKEN
    assert not found.is_encrypted


def test_a_token_in_place(tmp_path: Path) -> None:
    path = written(tmp_path, f"authPluginClassName={JAVA}", f"authParams=token:{TOKEN}", "enableTls=True")
    found = read_client_file(path, "ns")
    assert found.token is not None
    assert found.token.value() == TOKEN
    assert found.is_encrypted


def test_a_file_without_either(tmp_path: Path) -> None:
    found = read_client_file(written(tmp_path, "namespace=ns", "enableTls=no"), "ns")
    assert (found.is_encrypted, found.token) == (False, None)


@pytest.mark.parametrize(
    "lines",
    [
        ("authPluginClassName=com.example.Kerberos", "authParams=token:s3cret"),
        (f"authPluginClassName={JAVA}", "authParams=s3cret"),
        (f"authPluginClassName={JAVA}",),
        ("namespace=another",),
        (r"enableTls=\u12",),
    ],
)
def test_what_cannot_be_used_is_refused_and_no_secret_is_told(tmp_path: Path, lines: tuple[str, ...]) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        read_client_file(written(tmp_path, *lines), "ns")
    assert "s3cret" not in str(caught.value)


def test_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidConfiguration):
        read_client_file(str(tmp_path / "pipe"), "ns")


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="configFilePath"):
        read_client_file(str(tmp_path / "none"), "ns")


async def test_the_driver_takes_the_file_and_prefers_keys_of_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[MetadataTls | None, str | None]] = []

    class Seen(Exception): ...

    def connection(targets: object, namespace: str, tls: object, token: object) -> object:
        seen.append((tls, None if token is None else token.value()))  # type: ignore[arg-type, attr-defined]
        raise Seen

    monkeypatch.setattr(driver, "OxiaConnection", connection)
    path = written(tmp_path, f"authPluginClassName={JAVA}", f"authParams=token:{TOKEN}", "enableTls=true")
    uri = f"metadata-store:oxia://far:6648/ns?configFilePath={path}"
    with pytest.raises(Seen):
        await open_metadata_service(uri)
    (tmp_path / "own").write_text("a-token-of-our-own\n")
    own = MetadataTls(ca_file="/ca.pem")
    with pytest.raises(Seen):
        await open_metadata_service(uri, tls=own, token_file=str(tmp_path / "own"))
    assert seen == [(MetadataTls(), TOKEN), (own, "a-token-of-our-own")]
    open_to_all = written(tmp_path, f"authPluginClassName={JAVA}", f"authParams=token:{TOKEN}")
    with pytest.raises(InvalidConfiguration, match="metadataServiceTlsEnable"):
        await open_metadata_service(f"oxia://far:6648/ns?configFilePath={open_to_all}")

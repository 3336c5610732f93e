"""The provider that a configuration names, and what `config check` says of one that cannot be used.

The role in a certificate's subject, as the reference implementation reads it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_pod.config.load import load_config
from bookie_pod.node.dry_start import refusals
from bookie_pod.server.tcp.authentication import role_of, server_authentication
from bookie_protocol.wire.auth import Subject

SASL = {
    "bookieAuthProviderFactoryClass": "SASLBookieAuthProviderFactory",
    "clientAuthProviderFactoryClass": "SASLClientProviderFactory",
}
TOKEN = {"bookieAuthProviderFactoryClass": "SharedToken", "clientAuthProviderFactoryClass": "SharedToken"}
OWN = {"bookieAuthProviderFactoryClass": "EntryPoint", "clientAuthProviderFactoryClass": "EntryPoint"}
JAAS = (
    'Bookie { Digest required user_app="s3cret"; }; BookKeeper { Digest required username="app" password="s3cret"; };'
)


@pytest.mark.parametrize(("settings", "plugin"), [({}, None), (SASL, "sasl"), (TOKEN, "podkeeper-token")])
def test_the_provider_of_a_configuration(tmp_path: Path, settings: dict[str, str], plugin: str | None) -> None:
    (tmp_path / "jaas").write_text(JAAS)
    (tmp_path / "tokens").write_text("a-token-of-the-cluster")
    files = {"saslJaasConfigFile": str(tmp_path / "jaas"), "authTokenFile": str(tmp_path / "tokens")}
    provider = server_authentication(load_config(environ={}, overrides={**settings, **files}).auth)
    assert (provider and provider.plugin_name) == plugin


@pytest.mark.parametrize(
    ("settings", "content", "says"),
    [
        (SASL, None, "saslJaasConfigFile={}: No such file or directory"),
        (SASL, "Bookie {", "saslJaasConfigFile={}: line 1: a login module is missing"),
        (SASL, JAAS.replace("user_app", "app"), "saslJaasConfigFile={}: section Bookie has no user"),
        (
            SASL,
            JAAS.replace("username", "user"),
            "saslJaasConfigFile={}: section BookKeeper needs username and password",
        ),
        (TOKEN, None, "authTokenFile={}: No such file or directory"),
        (TOKEN, "short", "authTokenFile={}: line 1: the token has 5 characters; use at least 16"),
        (OWN, None, "authProviderEntryPoint=ours: not in the group podkeeper.bookie_auth"),
        (OWN, None, "authProviderEntryPoint=ours: not in the group podkeeper.client_auth"),
    ],
)
def test_what_a_check_of_the_configuration_says(
    tmp_path: Path, settings: dict[str, str], content: str | None, says: str
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_text(content)
    given = {"saslJaasConfigFile": str(path), "authTokenFile": str(path), "authProviderEntryPoint": "ours"}
    problems = list(refusals(load_config(environ={}, overrides={**settings, **given})))
    assert [line for line in problems if line.startswith(says.format(path))], problems
    assert not [line for line in problems if "s3cret" in line]


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

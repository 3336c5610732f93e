"""What a pod's own clients take from its configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_client.connection.channel import tls_context
from bookie_client.placement.options import PlacementOptions
from bookie_pod.client_options import client_options, client_placement
from bookie_pod.config.load import load_config
from bookie_pod.config.sections.security import SASL_CLIENT
from bookie_pod.node.dry_start import refusals
from bookie_protocol.auth.sasl import JaasAuth, SaslAuth
from bookie_protocol.errors import InvalidConfiguration
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


def test_stores_of_clients_where_they_have_their_own(tmp_path: Path) -> None:
    """As the reference's auto-recovery has them in the file of its bookie."""
    keys = Certificates(tmp_path).make_all().settings()
    own = {
        "clientKeyStore": "/keys.jks",
        "clientKeyStorePasswordPath": "/password",
        "clientTrustStoreType": "PKCS12",
        "clientTrustStore": "/trust.p12",
        "clientTrustStorePasswordPath": "/trust-password",
    }
    tls = client_options(load_config(environ={}, overrides=keys | own)).tls
    assert tls is not None
    assert (tls.key_file, tls.key_type, tls.key_password_file) == ("/keys.jks", "JKS", "/password")
    assert (tls.ca_file, tls.ca_type, tls.ca_password_file) == ("/trust.p12", "PKCS12", "/trust-password")


@pytest.mark.parametrize(
    ("sections", "named", "repairs", "user"),
    [
        (("BookKeeper", "Auditor"), None, True, "Auditor"),
        (("BookKeeper", "Auditor"), None, False, "BookKeeper"),
        (("BookKeeper",), None, True, "BookKeeper"),
        (("BookKeeper", "Auditor", "Repairs"), "Repairs", True, "Repairs"),
    ],
)
def test_the_login_of_auto_recovery(
    tmp_path: Path, sections: tuple[str, ...], named: str | None, repairs: bool, user: str
) -> None:
    file = tmp_path / "jaas.conf"
    file.write_text("".join(f'{name} {{ Login required username="{name}" password="secret"; }};' for name in sections))
    keys = {"clientAuthProviderFactoryClass": SASL_CLIENT, "saslJaasConfigFile": str(file)}
    named_keys = {} if named is None else {"saslJaasAuditorSectionName": named}
    auth = client_options(load_config(environ={}, overrides=keys | named_keys), repairs=repairs).auth
    assert isinstance(auth, JaasAuth)
    assert auth._login.value() == SaslAuth(user, "secret")


def test_a_login_of_auto_recovery_that_is_named_is_there(tmp_path: Path) -> None:
    file = tmp_path / "jaas.conf"
    file.write_text('BookKeeper { Login required username="a" password="secret"; };')
    keys = {"clientAuthProviderFactoryClass": SASL_CLIENT, "saslJaasConfigFile": str(file)}
    config = load_config(environ={}, overrides=keys | {"saslJaasAuditorSectionName": "Repairs"})
    assert any("there is no section Repairs" in each for each in refusals(config))


def placement(**keys: str) -> PlacementOptions:
    return client_placement(load_config(environ={}, overrides=keys), local_bookie="bookie-0:3181")


def test_what_nobody_set_is_left_to_the_client() -> None:
    assert placement() == PlacementOptions(local_bookie="bookie-0:3181")


def test_javas_classes_and_keys() -> None:
    made = placement(
        ensemblePlacementPolicy="org.apache.bookkeeper.client.RegionAwareEnsemblePlacementPolicy",
        reppRegionsToWrite="east;west",
        enforceMinNumRacksPerWriteQuorum="yes",
        minNumRacksPerWriteQuorum="3",
        diskWeightBasedPlacementEnabled="true",
    )
    assert (made.policy, made.regions_to_write) == ("region-aware", ("east", "west"))
    assert (made.enforce_racks, made.min_racks, made.weighted) == (True, 3, True)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"ensemblePlacementPolicy": "com.example.Own"}, "ensemblePlacementPolicy"),
        ({"reppDnsResolverClass": "org.example.TableMapping"}, "needs networkTopologyTableFileName"),
    ],
)
def test_what_is_not_known_is_refused(keys: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        placement(**keys)

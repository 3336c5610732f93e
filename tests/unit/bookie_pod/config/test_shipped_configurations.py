"""The configurations that others ship start a bookie as they are: their keys and values are in `tests/golden`, and
Pulsar's in the image for its chart."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_client.placement.options import make_source
from bookie_client.placement.sources import PulsarRacks
from bookie_pod.client_options import client_placement
from bookie_pod.config.ignored import is_ignored
from bookie_pod.config.load import read_config
from bookie_pod.config.model import BookieConfig, all_keys
from bookie_pod.node.dry_start import refusals
from bookie_pod.server.tcp.tls import server_tls
from tests.support.certificates import Certificates
from tests.support.image_scripts import load

commands = load("pulsar/commands")

PULSAR = Path("docker/pulsar/conf/bookkeeper.conf")
BOOKKEEPER = Path("tests/golden/configurations/bookkeeper-bk_server.conf")
BOOKKEEPER_KEYS = Path("tests/golden/configurations/bookkeeper-keys.txt")
NAMED = {"PULSAR_PREFIX_advertisedAddress": "pulsar-bookie-0"}
"""This machine's name may stand for a loopback address."""
OLDER = {"flushEntrylogBytes": "268435456", "PULSAR_PREFIX_diskUsageThreshold": "0.95"}
"""What Pulsar 3.0 sets otherwise than 4.0 and 5.0. It sets nothing else that they do not."""
CHART = {
    **NAMED,
    "httpServerEnabled": "true",
    "httpServerPort": "8000",
    "statsProviderClass": "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider",
    "useHostNameAsBookieID": "true",
    "autoRecoveryDaemonEnabled": "false",
    "journalMaxBackups": "0",
    "journalDirectories": "/pulsar/data/bookkeeper/journal",
    "PULSAR_PREFIX_journalDirectories": "/pulsar/data/bookkeeper/journal",
    "ledgerDirectories": "/pulsar/data/bookkeeper/ledgers",
}
"""What the Apache Pulsar chart's ConfigMap has, whatever its age."""
ROCKSDB = {
    f"PULSAR_PREFIX_{key}RocksdbConf": f"conf/{file}_rocksdb.conf"
    for key, file in (
        ("default", "default"),
        ("entryLocation", "entry_location"),
        ("ledgerMetadata", "ledger_metadata"),
    )
}
BY_SERVERS = {"zkServers": "pulsar-zookeeper:2181", "zkLedgersRootPath": "/ledgers"}
BY_URI = {"zkServers": "", "zkLedgersRootPath": "", "zkTimeout": "60000"}
"""A newer chart's, beside `metadataServiceUri`."""
ENVIRONMENTS = {
    "as it is": NAMED,
    "Pulsar 3": NAMED | OLDER,
    "chart 3": CHART | BY_SERVERS,
    "chart 4": CHART | BY_URI | ROCKSDB | {"metadataServiceUri": "zk+hierarchical://pulsar-zookeeper:2181/ledgers"},
    "chart 4, Pulsar's driver": CHART | BY_URI | {"metadataServiceUri": "metadata-store:zk:pulsar-zookeeper:2181"},
}


def started_from(file: Path, environment: dict[str, str], work: Path) -> BookieConfig:
    """What a container makes of the file and its environment."""
    made = work / "bookkeeper.conf"
    made.write_text(commands.applied(file.read_text(), environment))
    loaded = read_config(str(made), environ={})
    assert loaded.problems == []
    assert loaded.config is not None
    return loaded.config


@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_a_start_refuses_nothing_of_pulsars(environment: dict[str, str], tmp_path: Path) -> None:
    config = started_from(PULSAR, environment, tmp_path)
    assert list(refusals(config)) == []
    assert config.metadata.service_uri is not None
    assert ("pulsar-zookeeper:2181" in config.metadata.service_uri) is ("httpServerEnabled" in environment)


def test_a_start_refuses_nothing_of_bookkeepers(tmp_path: Path) -> None:
    assert list(refusals(started_from(BOOKKEEPER, NAMED, tmp_path))) == []


def test_every_key_of_bookkeepers_is_known() -> None:
    """Those that its files leave in comments, too."""
    names = [line for line in BOOKKEEPER_KEYS.read_text().splitlines() if not line.startswith("#")]
    assert [name for name in names if name not in all_keys() and not is_ignored(name)] == []


def test_certificates_where_the_chart_has_them(tmp_path: Path) -> None:
    """PEM files of a secret, in place of the stores of Java; blanks behind their names count no more than in Java."""
    keys = Certificates(tmp_path).make_all().settings()
    del keys["tlsClientAuthentication"]
    environment = CHART | BY_SERVERS | {f"PULSAR_PREFIX_{key}": f"{value} " for key, value in keys.items()}
    config = started_from(PULSAR, environment, tmp_path)
    assert list(refusals(config)) == []
    assert server_tls(config.tls) is not None


def test_pulsars_goes_by_the_racks_that_pulsar_assigns() -> None:
    config = read_config(str(PULSAR), environ={}).config
    assert config is not None
    assert type(make_source(client_placement(config))) is PulsarRacks

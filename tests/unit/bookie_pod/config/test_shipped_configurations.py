"""The configurations that others ship start a bookie as they are: their keys and values are in `tests/golden`, and
Pulsar's in the image for its chart."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_client.placement.options import make_source
from bookie_client.placement.sources.pulsar import PulsarRacks
from bookie_pod.client_placement import client_placement
from bookie_pod.config.load import read_config
from bookie_pod.node.dry_start import refusals

PULSAR = Path("docker/pulsar/conf/bookkeeper.conf")
SHIPPED = (PULSAR, *sorted(Path("tests/golden/configurations").glob("*.conf")))
CHART = {
    "zkServers": "pulsar-zookeeper:2181",
    "zkLedgersRootPath": "/ledgers",
    "httpServerEnabled": "true",
    "httpServerPort": "8000",
    "statsProviderClass": "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider",
    "useHostNameAsBookieID": "true",
    "autoRecoveryDaemonEnabled": "false",
    "journalMaxBackups": "0",
    "journalDirectories": "/pulsar/data/bookkeeper/journal",
    "ledgerDirectories": "/pulsar/data/bookkeeper/ledgers",
    # this machine's name may stand for a loopback address
    "advertisedAddress": "pulsar-bookie-0",
}
"""What the Apache Pulsar chart's ConfigMap adds."""


@pytest.mark.parametrize("added", [{"advertisedAddress": "h"}, CHART], ids=["alone", "chart"])
@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_a_start_refuses_nothing_of_them(file: Path, added: dict[str, str]) -> None:
    loaded = read_config(str(file), environ={}, overrides=added)
    assert loaded.problems == []
    assert loaded.config is not None
    assert list(refusals(loaded.config)) == []


def test_pulsars_goes_by_the_racks_that_pulsar_assigns() -> None:
    config = read_config(str(PULSAR), environ={}).config
    assert config is not None
    assert type(make_source(client_placement(config))) is PulsarRacks

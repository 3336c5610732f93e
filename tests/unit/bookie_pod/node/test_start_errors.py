"""A failed start names its remedy, once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.security import MetadataConfig
from bookie_pod.node.start_errors import MetadataNotReached, as_start_errors
from bookie_protocol.errors import MetadataUnavailable

URI = "zk+null://zk:2181/ledgers"


@pytest.mark.parametrize(
    ("why", "told"),
    [
        (
            "/cookies: no answer from ZooKeeper",
            f"/cookies: no answer from ZooKeeper; check that it runs, and metadataServiceUri={URI}",
        ),
        (
            "no server of zk:2181 answered: check metadataServiceUri and that the servers run",
            f"no server of zk:2181 answered: check metadataServiceUri={URI} and that the servers run",
        ),
    ],
)
def test_the_remedy_of_a_metadata_service_that_is_away_is_named_once(why: str, told: str) -> None:
    config = replace(BookieConfig(), metadata=MetadataConfig(service_uri=URI))
    with pytest.raises(MetadataNotReached) as raised, as_start_errors(config):
        raise MetadataUnavailable(why)
    assert str(raised.value) == f"the metadata service does not answer: {told}"

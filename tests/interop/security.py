"""Clients of either kind that log in, and the codes with which they are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from bookie_client import Client, ClientOptions
from tests.interop.cluster import Cluster
from tests.interop.java_client import JavaClient, JavaClientError, payload
from tests.support.java import find_java

PROTOCOLS = ("V2", "V3")
UNAUTHORIZED = -102
NO_BOOKIES = -6
UNREACHABLE = {-8, NO_BOOKIES}
SASL_CLIENT = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
Connect = Callable[..., AbstractContextManager[JavaClient]]


@pytest.fixture
def java(class_path: str, tmp_path: Path) -> Connect:
    """A stock client with further properties: its own configuration keys, and those of the JVM."""

    @contextmanager
    def connect(cluster: Cluster, properties: dict[str, str]) -> Iterator[JavaClient]:
        given = {"org.apache.bookkeeper.conf.readsystemproperties": "true", **properties}
        launcher = [find_java(), *(f"-D{name}={value}" for name, value in given.items())]
        client = JavaClient(class_path, cluster.metadata_uri, tmp_path / "client.log", launcher=launcher)
        try:
            yield client
        finally:
            client.stop()

    return connect


def exchange(client: JavaClient) -> None:
    """Write, read, fence and recover."""
    for protocol in PROTOCOLS:
        ledger = client.create((1, 1, 1), protocol=protocol)
        client.append(ledger, 50)
        client.open(ledger, recover=True, protocol=protocol)
        assert client.read(ledger, 0, 49) == [payload(ledger, entry) for entry in range(50)]


def refused(client: JavaClient) -> set[int]:
    """The codes with which writes end."""
    return {refusal(client, (1, 1, 1), protocol) for protocol in PROTOCOLS}


def refusal(client: JavaClient, copies: tuple[int, int, int], protocol: str) -> int:
    with pytest.raises(JavaClientError) as raised:
        client.append(client.create(copies, protocol=protocol), 1)
    return raised.value.code


async def python_exchange(cluster: Cluster, options: ClientOptions) -> None:
    expected = [b"entry %d" % number for number in range(50)]
    async with Client(cluster.metadata_uri, options) as client:
        ledger = await client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        await ledger.append_many(expected)
        await client.recover(ledger.ledger_id)  # fences it
        async with client.open(ledger.ledger_id) as reader:
            assert [bytes(each) for each in await reader.read_payloads(0, 49)] == expected

"""Every single request of our client against a Java bookie, in plain text and over TLS."""

from __future__ import annotations

import asyncio

import pytest

from bookie_client.options import TlsOptions
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import BookieUnavailable, LedgerFenced, NoSuchEntry, NoSuchLedger, Unauthorized
from bookie_protocol.versioned import LedgerLife
from tests.support.certificates import Certificates
from tests.support.client_operations import operations_on
from tests.support.frames import KEY, OTHER_KEY, entry, lac_packet

B = "java"
SORTED = {"ledgerStorageClass": "org.apache.bookkeeper.bookie.SortedLedgerStorage"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates")).make_all()


@pytest.fixture(scope="module")
def java_port(make_cluster, certificates):
    """A bookie that offers TLS, and answers the list of entries."""
    bookie = make_cluster().bookie("java", SORTED | certificates.settings(demand_client=True))
    bookie.start()
    return int(bookie.configuration["bookiePort"])


@pytest.fixture(params=["plain", "tls"])
def options(request, certificates):
    if request.param == "plain":
        return {}
    folder = certificates.folder
    tls = TlsOptions(
        ca_file=str(folder / "authority.pem"),
        certificate_file=str(folder / "client.pem"),
        key_file=str(folder / "client.key"),
        check_hostname=False,
    )
    return {"tls": tls}


@pytest.fixture(params=[3, 2], ids=["v3", "v2"])
async def ask(request, java_port, options):
    async with operations_on({B: java_port}, protocol_version=request.param, **options) as operations:
        yield operations


@pytest.fixture
async def ask3(java_port, options):
    async with operations_on({B: java_port}, **options) as operations:
        yield operations


@pytest.fixture(scope="module")
def ids():
    """A ledger of its own for each test."""
    return iter(range(100, 1000))


async def fill(ask, ledger_id, count):
    await asyncio.gather(
        *(ask.add_entry(B, LedgerLife(ledger_id, 0), e, entry(ledger_id, e), KEY) for e in range(count))
    )


async def test_adds_reads_batches_and_fences(ask, ids):
    one = next(ids)
    with pytest.raises(NoSuchLedger):
        await ask.read_entry(B, one, 0)
    await fill(ask, one, 10)
    assert (await ask.read_entry(B, one, 3)).entry == entry(one, 3)
    assert (await ask.read_entry(B, one, LAST_ENTRY)).entry == entry(one, 9)
    assert (await ask.batch_read(B, one, 2, 5, 0)).split() == [entry(one, e) for e in range(2, 7)]
    with pytest.raises(NoSuchEntry):
        await ask.read_entry(B, one, 10, high_priority=True)
    with pytest.raises(NoSuchEntry):
        await ask.batch_read(B, one, 10, 5, 0)
    with pytest.raises(Unauthorized):
        await ask.read_entry(B, one, LAST_ENTRY, fence_key=OTHER_KEY)
    assert (await ask.read_entry(B, one, LAST_ENTRY, fence_key=KEY)).entry == entry(one, 9)
    with pytest.raises(LedgerFenced):
        await ask.add_entry(B, LedgerLife(one, 0), 10, entry(one, 10), KEY)
    await ask.add_entry(B, LedgerLife(one, 0), 10, entry(one, 10), KEY, recovery=True)
    assert (await ask.read_entry(B, one, 10, fence_key=KEY, high_priority=True)).entry == entry(one, 10)


async def test_the_last_add_confirmed(ask3, ids):
    one = next(ids)
    with pytest.raises(NoSuchEntry):
        await ask3.read_lac(B, one)
    await fill(ask3, one, 3)
    found = await ask3.read_lac(B, one)
    assert (found.explicit, found.last_entry, found.complete) == (None, entry(one, 2), True)
    assert (await ask3.read_entry(B, one, 0)).max_lac == 1
    await ask3.write_lac(B, one, KEY, 2, lac_packet(one, 2))
    assert (await ask3.read_lac(B, one)).explicit == lac_packet(one, 2)
    two = next(ids)
    await ask3.write_lac(B, two, KEY, 5, lac_packet(two, 5))
    found = await ask3.read_lac(B, two)
    assert (found.explicit, found.last_entry, found.complete) == (lac_packet(two, 5), None, False)


async def test_long_polls(ask3, ids):
    one = next(ids)
    await fill(ask3, one, 3)
    poll = asyncio.create_task(ask3.long_poll(B, one, LAST_ENTRY, 1, 60.0, piggyback_entry=True))
    await asyncio.sleep(0)
    await ask3.add_entry(B, LedgerLife(one, 0), 3, entry(one, 3), KEY)
    async with asyncio.timeout(20):
        woken = await poll
    assert (woken.max_lac, woken.entry) == (2, entry(one, 2))
    in_time = await ask3.long_poll(B, one, LAST_ENTRY, 2, 0.1, piggyback_entry=True)
    assert (in_time.max_lac, in_time.entry) == (2, None)


async def test_space_entries_and_force(ask, ids):
    one = next(ids)
    for e in (0, 1, 5, 6, 20):
        await ask.add_entry(B, LedgerLife(one, 0), e, entry(one, e), KEY)
    assert list(await ask.entries_of_ledger(B, one)) == [0, 1, 5, 6, 20]
    info = await ask.bookie_info(B)
    assert info.total_bytes > info.free_bytes > 0
    if ask.pool.options.protocol_version == 3:
        await ask.force_ledger(B, one)


async def test_a_client_without_a_certificate(java_port, certificates):
    tls = TlsOptions(ca_file=str(certificates.folder / "authority.pem"), check_hostname=False)
    async with operations_on({B: java_port}, tls=tls) as ask:
        with pytest.raises(BookieUnavailable):
            await ask.add_entry(B, LedgerLife(1, 0), 0, entry(1, 0), KEY)

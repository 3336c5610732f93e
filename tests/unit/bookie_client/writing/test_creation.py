"""What may be asked for when a ledger is created, and how it is."""

from __future__ import annotations

import inspect
from dataclasses import fields
from time import process_time

import pytest

from bookie_client import BlockingClient, Client
from bookie_client.connection.dialect_v3 import V3AddEncoder
from bookie_client.writing.creation import NewLedger
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import BadRequest, MetadataExists, NotEnoughBookies
from bookie_protocol.keys import NO_LIFE, life_of
from bookie_protocol.ledger_metadata.model import LedgerState

CREATES = (Client.create, Client.create_advanced, BlockingClient.create, BlockingClient.create_advanced)


@pytest.mark.parametrize("create", CREATES, ids=lambda create: create.__qualname__)
def test_every_create_shows_the_parameters_with_their_defaults(create):
    own, *shown = inspect.signature(create).parameters.values()
    assert own.name == "self"
    assert {each.kind for each in shown} == {inspect.Parameter.KEYWORD_ONLY}
    assert [(each.name, each.default) for each in shown] == [(each.name, each.default) for each in fields(NewLedger)]
    assert create.__doc__


def test_what_does_not_fit_is_refused_at_the_call():
    client = Client("embedded://127.0.0.1:1/ledgers")
    with pytest.raises(BadRequest, match="quorums"):
        client.create(ensemble=2, write_quorum=3)
    with pytest.raises(TypeError, match="ensembel"):
        client.create(ensembel=3)


def test_custom_metadata_may_be_left_out():
    assert NewLedger().custom_metadata == NewLedger(metadata=None).custom_metadata == {}
    assert NewLedger(metadata={"a": b"b"}).custom_metadata == {"a": b"b"}


@pytest.mark.parametrize("ledger_id", [-1, 2**63])
def test_ids_outside_63_bits_are_refused(ledger_id):
    with pytest.raises(BadRequest, match=r"is outside 0 to 2\^63-1"):
        NewLedger(ledger_id=ledger_id)


@pytest.mark.parametrize("metadata", [{"name": "text"}, {b"name": b"bytes"}])
def test_custom_metadata_maps_names_to_bytes(metadata):
    with pytest.raises(BadRequest, match="custom"):
        NewLedger(metadata=metadata)


def test_a_password_is_not_printed():
    assert "secret" not in repr(NewLedger(password=b"secret"))


@pytest.mark.parametrize("advanced", [False, True])
async def test_everything_asked_for_is_stored_and_no_bookie_is_contacted(three, advanced):
    async with three.client() as client:
        create = client.create_advanced if advanced else client.create
        ledger = await create(
            ensemble=3,
            write_quorum=3,
            ack_quorum=1,
            password=b"pw",
            digest=DigestType.MAC,
            metadata={"app": b"\x00x"},
            ledger_id=2**40,
        )
        stored = three.stored(2**40)
        assert (stored.ensemble_size, stored.write_quorum_size, stored.ack_quorum_size) == (3, 3, 1)
        assert (stored.state, stored.password, stored.digest_type) == (LedgerState.OPEN, b"pw", DigestType.MAC)
        assert stored.custom_metadata == {"app": b"\x00x"}
        assert (ledger.ledger_id, ledger.last_add_confirmed, ledger.last_add_pushed, ledger.length) == (
            2**40,
            -1,
            -1,
            0,
        )
        assert [server.accepted for server in three.servers.values()] == [0, 0, 0]


async def test_opportunistic_striping_takes_the_largest_ensemble_there_is(three):
    async with three.client(opportunistic_striping=True) as client:
        async with client.create(ensemble=5, write_quorum=2, ack_quorum=2) as ledger:
            assert await ledger.append_many([b"x"] * 6) == list(range(6))
        stored = three.stored(ledger.ledger_id)
        assert (stored.ensemble_size, stored.write_quorum_size, stored.ack_quorum_size) == (3, 2, 2)
        assert [len(three.held_at(name, ledger.ledger_id)) for name in three.servers] == [4, 4, 4]
        with pytest.raises(NotEnoughBookies, match="ensemble of 4"):
            await client.create(ensemble=5, write_quorum=4)
    async with three.client() as client:
        with pytest.raises(NotEnoughBookies, match="ensemble of 5"):
            await client.create(ensemble=5)


async def test_a_generated_id_that_somebody_chose_is_passed_over(three):
    async with three.client() as client:
        for chosen in (0, 1):
            async with client.create(ledger_id=chosen):
                pass
        async with client.create() as ledger:
            assert ledger.ledger_id == 2


async def test_a_generator_that_gives_the_same_id_for_ever_ends(three):
    attempts = 0

    async def generate_id(*, timeout=None):
        nonlocal attempts
        attempts += 1
        return 5

    three.metadata.ledgers.generate_id = generate_id
    async with three.client() as client:
        async with client.create():
            pass
        with pytest.raises(MetadataExists):
            await client.create()
    assert attempts == 1 + 2


async def test_any_number_of_taken_ids_is_passed_over(three):
    """After metadata were restored the generator may be far behind."""
    async with three.client() as client:
        for chosen in range(120):
            async with client.create(ledger_id=chosen):
                pass
        async with client.create() as ledger:
            assert ledger.ledger_id == 120


@pytest.mark.parametrize("quorums", [(100_000, 2, 2), (201, 201, 201), (2**31, 2**31, 2**31)])
async def test_a_huge_ensemble_is_refused_before_anything_is_computed(three, quorums):
    new = dict(zip(("ensemble", "write_quorum", "ack_quorum"), quorums, strict=True))
    async with three.client() as client:
        began = process_time()
        with pytest.raises(BadRequest, match="at most 200"):
            await client.create(**new)
        assert process_time() - began < 1


async def test_with_opportunistic_striping_a_huge_ensemble_means_all_bookies(three):
    async with three.client(opportunistic_striping=True) as client:
        ledger = await client.create(ensemble=2**31 - 1, write_quorum=2, ack_quorum=2)
        assert three.stored(ledger.ledger_id).ensemble_size == 3


async def test_the_largest_ensemble_costs_little_where_there_are_few_bookies(three):
    began = process_time()
    for opportunistic in (False, True):
        async with three.client(opportunistic_striping=opportunistic) as client:
            with pytest.raises(NotEnoughBookies):
                await client.create(ensemble=200, write_quorum=100, ack_quorum=100)
    assert process_time() - began < 1


@pytest.mark.parametrize(
    ("options", "named"),
    [({"ledger_id": 9}, True), ({}, False), ({"ledger_id": 9, "restored": True}, True)],
    ids=["chosen id", "id of the cluster", "restored"],
)
async def test_writer_that_chose_the_id_names_the_ledger_by_its_life(three, monkeypatch, options, named):
    lives = []
    make = V3AddEncoder.__init__

    def note(self, ledger_id, master_key, flags, life):
        lives.append(life)
        make(self, ledger_id, master_key, flags, life)

    monkeypatch.setattr(V3AddEncoder, "__init__", note)
    async with three.client() as client, client.create(write_quorum=2, **options) as ledger:
        await ledger.append(b"one")
    token = ledger.metadata.creation_token
    assert lives == [life_of(token) if named else NO_LIFE]
    assert token

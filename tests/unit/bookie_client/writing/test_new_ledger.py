"""The parameters of a new ledger stand once, and every `create` shows them."""

import inspect
from dataclasses import fields

import pytest

from bookie_client import BlockingClient, Client
from bookie_client.writing.creation import NewLedger
from bookie_protocol.errors import BadRequest

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
    with pytest.raises(BadRequest, match="quorums do not fit"):
        client.create(ensemble=2, write_quorum=3)
    with pytest.raises(TypeError, match="ensembel"):
        client.create(ensembel=3)


def test_custom_metadata_may_be_left_out():
    assert NewLedger().custom_metadata == NewLedger(metadata=None).custom_metadata == {}
    assert NewLedger(metadata={"a": b"b"}).custom_metadata == {"a": b"b"}

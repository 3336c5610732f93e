"""Many nodes in one request: how many, how large, and an owner of an earlier release."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie_protocol.errors import MetadataNotFound, MetadataUnavailable
from bookie_protocol.metadata_service.embedded import embedded_metadata_pb2 as messages
from bookie_protocol.metadata_service.embedded.local import connect_local
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner
from bookie_protocol.metadata_service.tree.nodes import NODES_AT_ONCE, Node, NodeTree


class Asked:
    """What the owner was asked to read."""

    def __init__(self, owner: EmbeddedOwner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[messages.ExecuteRequest] = []
        self.answer: messages.ExecuteReply | None = None
        execute = owner.execute

        async def noting(request: messages.ExecuteRequest) -> messages.ExecuteReply:
            kind = request.WhichOneof("operation")
            if kind in ("get", "get_each"):
                self.requests.append(request)
            if kind == "get_each" and self.answer is not None:
                return self.answer
            return await execute(request)

        monkeypatch.setattr(owner, "execute", noting)


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[EmbeddedOwner]:
    owner = await EmbeddedOwner.open(str(tmp_path))
    yield owner
    await owner.close()


@pytest.fixture
async def tree(owner: EmbeddedOwner) -> AsyncIterator[NodeTree]:
    service = await connect_local(owner, 10.0, root="/ledgers")
    yield service.tree._tree
    await service.close()


PATHS = [f"/{number:02}" for number in range(NODES_AT_ONCE)]


@pytest.mark.parametrize(("size", "requests"), [(10, 1), (400_000, 11)])
async def test_an_answer_has_as_many_as_fit(
    tree: NodeTree, owner: EmbeddedOwner, monkeypatch: pytest.MonkeyPatch, size: int, requests: int
) -> None:
    for number, path in enumerate(PATHS[::2]):
        await tree.create(path, bytes([number]) * size, timeout=10)
    asked = Asked(owner, monkeypatch)
    found = await tree.get_each(PATHS, timeout=10)
    assert [each.data[:1] if isinstance(each, Node) else type(each) for each in found] == [
        MetadataNotFound if number % 2 else bytes([number // 2]) for number in range(NODES_AT_ONCE)
    ]
    assert found[2] == await tree.get(PATHS[2], timeout=10)
    assert len(asked.requests) - 1 == requests


async def test_no_request_is_answered_without_a_bound(owner: EmbeddedOwner) -> None:
    session = (await owner.open_session(messages.OpenSessionRequest(timeout_ms=60_000))).session
    reads = messages.ReadEach(paths=["/missing"] * 1000)
    reply = await owner.execute(messages.ExecuteRequest(session=session, get_each=reads))
    assert (reply.outcome.code, len(reply.found)) == (messages.OK, NODES_AT_ONCE)


async def test_an_owner_that_does_not_know_it_is_asked_for_one_after_the_other(
    tree: NodeTree, owner: EmbeddedOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tree.create(PATHS[1], b"one", timeout=10)
    asked = Asked(owner, monkeypatch)
    asked.answer = messages.ExecuteReply(outcome=messages.Outcome(code=messages.INVALID))
    missing, there = await tree.get_each(PATHS[:2], timeout=10)
    assert (type(missing), there) == (MetadataNotFound, await tree.get(PATHS[1], timeout=10))


@pytest.mark.parametrize("answers", [0, 3])
async def test_no_answer_and_one_too_many_are_no_answers(
    tree: NodeTree, owner: EmbeddedOwner, monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    asked = Asked(owner, monkeypatch)
    asked.answer = messages.ExecuteReply(outcome=messages.Outcome(), found=[messages.Found()] * answers)
    with pytest.raises(MetadataUnavailable):
        await tree.get_each(PATHS[:2], timeout=10)

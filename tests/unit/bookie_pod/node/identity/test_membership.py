"""A session begins with what is stored: the cluster, the bookie's own cookie, the record of its decommission."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bookie_pod.autorecovery.decommission.store import DecommissionRequest, DecommissionStore
from bookie_pod.autorecovery.decommission.undo import undo
from bookie_pod.config.sections.gc import DisksConfig
from bookie_pod.node.identity.cookie_check import StoredCookie
from bookie_pod.node.identity.cookies import BookieDirectories, Cookie, format_cookie
from bookie_pod.node.identity.membership import Membership, NotAMember
from bookie_pod.node.mode import BookieMode
from bookie_protocol.errors import InvalidCookie, MetadataUnavailable
from bookie_protocol.metadata_service.tree.life_cycle import erase
from tests.support.decommission_rig import GOING, Gate, Rig
from tests.support.migration_world import MigrationWorld, seen
from tests.support.until import until

DIRECTORIES = BookieDirectories(("/j",), ("/l",))
Change = Callable[[Rig, Cookie], Awaitable[object]]


class Running:
    """A bookie that runs."""

    def __init__(self, rig: Rig, own: StoredCookie) -> None:
        self.own = own
        self.gate = Gate()
        self.tasks: list[asyncio.Future[None]] = []
        mode = BookieMode(DisksConfig(), self.gate, lambda work: None, lambda error: None)
        self.membership = Membership(
            rig.service, own, mode, lambda work: self.tasks.append(asyncio.ensure_future(work))
        )

    @classmethod
    async def stamped(cls, rig: Rig) -> Running:
        cookie = Cookie.expected(GOING, DIRECTORIES, await rig.service.cluster.instance_id())
        await write(rig, format_cookie(cookie))
        return cls(rig, StoredCookie(GOING, cookie, (await rig.service.cookies.read(GOING)).identity))


async def write(rig: Rig, data: bytes) -> None:
    """Write the cookie that there is again, with other bytes."""
    stored = await rig.service.cookies.read(GOING)
    await rig.service.cookies.update(GOING, data, stored.identity)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(tmp_path) as made:
        yield made


async def delete(rig: Rig, cookie: Cookie) -> None:
    await rig.service.cookies.delete(GOING)


async def replace_by_another_bookie(rig: Rig, cookie: Cookie) -> None:
    """Its volumes are new, their paths are the same, and so is every byte of its cookie."""
    await rig.service.cookies.delete(GOING)
    await rig.service.cookies.create(GOING, format_cookie(cookie))


async def rename(rig: Rig, cookie: Cookie) -> None:
    await write(rig, format_cookie(replace(cookie, bookie_id="b9:1")))


async def make_another_cluster(rig: Rig, cookie: Cookie) -> None:
    await rig.service.cluster.format(force=True)


async def damage(rig: Rig, cookie: Cookie) -> None:
    await write(rig, b"nothing of ours")


@pytest.mark.parametrize("change", [delete, replace_by_another_bookie, rename, make_another_cluster, damage])
async def test_bookie_whose_cookie_is_gone_or_another_is_no_member(rig: Rig, change: Change) -> None:
    running = await Running.stamped(rig)
    assert not await running.membership.check()
    await change(rig, running.own.cookie)
    with pytest.raises(InvalidCookie) as caught:
        await running.membership.check()
    assert caught.value.exit_code == 2
    assert isinstance(caught.value, NotAMember) or change is damage
    assert "\n" not in str(caught.value)


async def test_records_of_an_earlier_cluster_do_not_count(rig: Rig) -> None:
    """Somebody else's tool made a new cluster, and left what it does not know."""
    await DecommissionStore(rig.service).begin(DecommissionRequest(GOING, "a coordinator"))
    assert await (await Running.stamped(rig)).membership.check()
    await rig.service.tree.overwrite(f"{rig.service.root}/INSTANCEID", b"another")
    await rig.service.cookies.delete(GOING)
    await rig.service.cookies.create(GOING, b"")
    running = await Running.stamped(rig)
    with pytest.raises(NotAMember, match="podkeeper"):
        await running.membership.check()
    assert not running.gate.read_only
    await erase(rig.service.tree, f"{rig.service.root}/podkeeper")
    assert not await running.membership.check()
    await DecommissionStore(rig.service).begin(DecommissionRequest(GOING, "a coordinator"))
    assert await running.membership.check()


async def rewrite(rig: Rig, cookie: Cookie) -> None:
    """As an undo does, so that a deletion under way fails."""
    await write(rig, format_cookie(cookie))


async def expand(rig: Rig, cookie: Cookie) -> None:
    """As the admin API of this bookie does."""
    grown = replace(cookie, ledger_dirs="2\t/l\t/l2")
    await write(rig, format_cookie(grown))


@pytest.mark.parametrize("change", [rewrite, expand])
async def test_cookie_that_is_written_again_is_the_same(rig: Rig, change: Change) -> None:
    running = await Running.stamped(rig)
    await change(rig, running.own.cookie)
    assert not await running.membership.check()


async def test_cookie_that_is_replaced_behind_a_move_to_oxia_is_another_one() -> None:
    world = MigrationWorld()
    process = await world.begin()
    cookies = process.service.cookies
    cookie = Cookie.expected(GOING, DIRECTORIES, await process.service.cluster.instance_id())
    own = StoredCookie(GOING, cookie, await cookies.create(GOING, format_cookie(cookie)))
    mode = BookieMode(DisksConfig(), Gate(), lambda work: None, lambda error: None)
    membership = Membership(process.service, own, mode, lambda work: None)
    await world.migrate()
    await seen(lambda: process.gate.has_switched)
    await membership.check()
    await cookies.delete(GOING)
    await cookies.create(GOING, format_cookie(cookie))
    with pytest.raises(NotAMember):
        await membership.check()


async def test_nobody_answers_is_not_nobody_knows_it(rig: Rig) -> None:
    running = await Running.stamped(rig)
    service, transport = await rig.connect()
    away = Membership(service, running.own, BookieMode(DisksConfig(), Gate(), lambda _: None, lambda _: None), print)
    transport.died.set()
    with pytest.raises(MetadataUnavailable):
        await away.check()


async def test_decommission_that_began_meanwhile_makes_it_read_only_until_undone(rig: Rig) -> None:
    """Its coordinator may have been interrupted: nobody else tells the bookie."""
    running = await Running.stamped(rig)
    assert not await running.membership.check()
    await DecommissionStore(rig.service).begin(DecommissionRequest(GOING, "a coordinator"))
    assert await running.membership.check()
    assert running.gate.read_only
    assert await running.membership.check(), "as in the session after that"
    [following] = running.tasks
    await undo(rig.service, rig, GOING)
    await asyncio.wait_for(following, 10)
    await until(lambda: not running.gate.read_only)
    assert not await running.membership.check()
    await DecommissionStore(rig.service).begin(DecommissionRequest(GOING, "another coordinator"))
    assert await running.membership.check()
    for task in running.tasks:
        task.cancel()

"""Takes part in a migration as Pulsar's coordinator expects of each process with metadata in ZooKeeper.

    NOT_STARTED, FAILED     an ephemeral node of ours says that we take part; writes are let through
    PREPARATION             writes pause; those under way end; locks and votes end; our registrations are made in Oxia;
                            then our node is deleted, for which the coordinator waits
    COPYING                 the same, which changes nothing where it was done
    COMPLETED               everything goes on in Oxia

Invariants
- In each session with ZooKeeper the node that says that we take part is made before the first write is let through, and
  the migration is read behind it. So a migration that this read does not show finds our node, and waits (`OurNode`).
- A look comes with each change that ZooKeeper tells, and at least once a minute: what others hide has no watch.
- In a pause two things prove that the metadata are in ZooKeeper, each until its watch fires. One is a flag that was
  read, is believed, and does not say COMPLETED. The other is our node, if such a flag that says no pause was read
  behind it: a migration waits for it, whatever the flag says later. Nothing else proves it. Not every coordinator
  waits, so an answer that our node proves counts only once the flag has been read behind its last change.
- A process for which a migration does not wait may sleep through its end, and find no flag, or one that says
  NOT_STARTED. That is a process that has agreed, one whose session began in a pause, and one that has read COMPLETED.
  Only FAILED, or COMPLETED, lets it go on: until then it neither writes nor believes what it reads.
- The same is true of a process that has lost its node, or has none, and finds no flag or NOT_STARTED, unless no
  migration has come and gone since the last look. It knows from the flag's version, and from the listings of the flag's
  directory, whose versions count what comes and goes. If it may not list the directory, it does not know.
- A session that begins in a pause makes no node: the coordinator does not wait for it. It prepares all the same, since
  no other process of ours may be there, and so does one that finds another flag than it has prepared for.
- From the first try to delete our node on it counts as gone, until another one is made, unless ZooKeeper refused it.
- What cannot be understood pauses writes, and what others than the cluster's own users could have written says nothing.
- Before writes are let through behind a pause, what goes with a session is gone, as far as it is not a registration.
  Behind that step our node and the flag must still be as the look found them, or else the newest flag must say no pause
  either. That is no reason to wait: a flag can be written faster than it can be read, and a node be deleted by others.
- If Oxia has the metadata although we were not ready, what we wrote may be missing there: `Session.doubt` says so.
- ZooKeeper numbers ledgers by a counter that the copy leaves behind, and Oxia would give the same ids again. So before
  our node goes, and before our first write to Oxia, the generator of 63-bit ids has high-order bits in Oxia under which
  ZooKeeper gives no id.
- What an earlier copy left in Oxia is not gone on with: it has things that were deleted since. Neither is another
  cluster.

Threads: event loop only.

Source: Apache Pulsar, PIP-454: `DualMetadataStore`, `MigrationCoordinator`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from bookie_protocol.errors import (
    InvalidConfiguration,
    MetadataDamaged,
    MetadataError,
    MetadataRefused,
    MetadataUnavailable,
)
from bookie_protocol.lasting import heard, lasting_task
from bookie_protocol.logs import get_logger
from bookie_protocol.metadata_service.interface import SessionState
from bookie_protocol.metadata_service.migrating import flag
from bookie_protocol.metadata_service.migrating.clusters import check_empty, check_same
from bookie_protocol.metadata_service.migrating.flag import Migration, Phase
from bookie_protocol.metadata_service.migrating.flag_reader import (
    FlagReader,
    Seen,
    Told,
    within,
)
from bookie_protocol.metadata_service.migrating.gate import MigratingTree
from bookie_protocol.metadata_service.migrating.lines import Lines
from bookie_protocol.metadata_service.migrating.numbers import begin_new_numbers
from bookie_protocol.metadata_service.migrating.our_node import PAUSE_S, OurNode
from bookie_protocol.metadata_service.migrating.own_nodes import below, carry_own, delete_own
from bookie_protocol.metadata_service.migrating.proofs import Proof, ProvingWatch
from bookie_protocol.metadata_service.migrating.questions import Questions
from bookie_protocol.metadata_service.options import MetadataServiceUri
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost, NodeTree

LONGEST_PAUSE_S: Final = 8.0
ROUND_S: Final = 0.05
"""Seconds between two rounds, however often others change what is watched."""
GRACE_SESSIONS: Final = 3.0
"""Session time-outs for which the session with ZooKeeper goes on after the switch. Slower processes still see our
registration then."""
LOOK_S: Final = 60.0
"""Seconds after which a look comes without news."""
DOUBT: Final = (
    "Pulsar moved the metadata to Oxia without waiting for this process, so what it wrote last may be missing there"
)

_log = get_logger(__name__)


class Participant:
    """Takes part for one tree. `begin` starts it; closing the tree ends it.

    `connect` opens the tree of a URI of Oxia. `believes` tells, within so many seconds, whether only the cluster's own
    users could have written what the coordinator says.
    """

    def __init__(
        self,
        tree: MigratingTree,
        root: str,
        connect: Callable[[MetadataServiceUri], Awaitable[NodeTree]],
        believes: Callable[[float], Awaitable[bool]],
    ) -> None:
        self._tree = tree
        self._source = tree.source
        self._root = root
        self._scope = flag.scope_of(root)
        self._connect = connect
        self._timeout = tree.source.session.default_timeout
        self._target: NodeTree | None = None
        self._target_url = ""
        self._lines = Lines()
        self._node = OurNode(tree.source, self._scope, tree.proofs, self._hear, self._lines)
        flag_watch = ProvingWatch(tree.proofs, self._hear_flag)
        self._flag = FlagReader(tree.source, self._scope + flag.FLAG, flag_watch, believes, self._lines)
        self._questions = Questions(self._ask)
        self._may_have_moved = False
        """True if a migration that did not wait for us may be complete by now."""
        self._seen: Seen | None = None
        """Flag and listing in the last look that found no pause."""
        self._prepared_for: Migration | None = None
        """The flag for which Oxia has what we make there ahead of the copy."""
        self._wrote_in: int | None = None
        """The session of ZooKeeper in which writes were let through that no preparation has ended."""
        self._leaving: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._failing_since: float | None = None
        """Time of the loop of the first failure since the last step that succeeded."""
        self._phase = Phase.NOT_STARTED
        """The phase that the last look found."""
        tree.on_session = self._hear
        tree.check, tree.told = self._check, self._questions.answered
        tree.end, tree.outlives = self._close, self._is_registration

    async def begin(self) -> None:
        """Learn where the metadata are.

        Raises `MetadataUnavailable`, `InvalidConfiguration`. `MetadataDamaged`: the migration is complete, but this
        cluster cannot go on in Oxia.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        self._tasks.append(lasting_task(self._questions.run(), "question whether the metadata have moved"))
        while True:
            try:
                async with within(deadline - loop.time(), "it cannot be learned where the metadata are"):
                    await self._round(self._timeout, is_start=True)
                break
            except MetadataDamaged as error:  # a pause, and it may be mended
                if self._phase is Phase.COMPLETED:
                    raise
                self._tell(error)
                self._hear()
                break
            except MetadataUnavailable as error:
                if isinstance(error, MetadataRefused) or loop.time() + PAUSE_S >= deadline:
                    raise
                await asyncio.sleep(PAUSE_S)
        self._tasks.append(lasting_task(self._follow(), "migration of the metadata"))

    async def _close(self) -> None:
        for each in self._tasks:
            each.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._leave_target()
        await self._source.close()

    # --- following ------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        self._news.set()

    def _hear_flag(self) -> None:
        self._hear()
        self._questions.hear()

    def _tell(self, error: Exception) -> None:
        is_foreseen = isinstance(error, MetadataError | InvalidConfiguration)
        now = asyncio.get_running_loop().time()
        if self._failing_since is None:
            self._failing_since = now
        self._lines.write(
            _log.warning,
            "a step of the metadata's migration to Oxia is tried again",
            type(error).__name__,
            reason=str(error) if is_foreseen else repr(error),
            seconds=round(now - self._failing_since),
            exc_info=None if is_foreseen else error,
        )

    async def _follow(self) -> None:
        pause, waited = PAUSE_S, 0.0
        while not self._tree.has_switched:
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._news.wait()
                waited = 0.0
            except TimeoutError:
                waited += LOOK_S
                if self._phase.pauses:
                    self._lines.write(
                        _log.warning,
                        "writes wait for Pulsar's migration of the metadata to Oxia",
                        phase=self._phase.value,
                        seconds=round(waited),
                    )
            self._news.clear()
            if self._source.session.state is not SessionState.CONNECTED:
                continue
            try:
                await self._round(self._timeout)
                pause, self._failing_since = PAUSE_S, None
            except Exception as error:  # of what others wrote, and a later migration may be a good one
                self._tell(error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._news.wait()
                pause = min(pause * 2, LONGEST_PAUSE_S)
                self._hear()
            await asyncio.sleep(ROUND_S)
        await asyncio.sleep(GRACE_SESSIONS * self._timeout)
        try:
            await self._source.close()
        except Exception as error:  # the metadata are in Oxia
            self._tell(error)
        await asyncio.Event().wait()

    async def _round(self, limit: float, *, is_start: bool = False) -> None:
        """Look, within `limit` seconds, and do what follows. A start does not wait for the preparation."""
        session_id, forgotten = self._source.session_id, self._tree.proofs.forgotten
        proofs: list[Proof] = []
        try:
            async with within(limit, f"{self._flag.path} cannot be read"):
                told = await self._look(session_id, proofs)
        except MetadataDamaged:  # it says nothing of a move
            self._tree.hold()
            raise
        finally:
            self._tree.proofs.last = proofs
        if told.phase is Phase.COMPLETED:
            await self._complete(told.migration, session_id)
            return
        if forgotten != self._tree.proofs.forgotten:
            raise ConnectionLost("the connection was lost during a look at the migration, or the metadata moved")
        self._phase = told.phase
        if told.phase.pauses:
            self._tree.hold()
            if self._node.unready_in == session_id or not told.migration.is_prepared_with(self._prepared_for):
                if is_start:
                    self._hear()
                else:
                    await self._prepare(told.migration, session_id)
        elif not self._tree.is_open:
            await self._resume(told, session_id, forgotten)

    async def _resume(self, told: Told, session_id: int, forgotten: int) -> None:
        if told.phase is Phase.FAILED and self._target is not None and self._leaving is None:
            self._lines.write(_log.warning, "the migration of the metadata to Oxia has failed: they stay in ZooKeeper")
        self._begin_to_leave()  # Oxia may not answer
        await self._tree.drained()
        await self._end_what_goes_with_a_session(session_id)
        if not await self._goes_on_without_pause(told):
            return
        self._node.unready_in = session_id
        self._tree.open(forgotten)
        if self._tree.is_open:
            self._wrote_in = session_id

    async def _goes_on_without_pause(self, told: Told) -> bool:
        """Return False if a migration may go on without us since the look. The next round looks again."""
        if self._node.has_stayed and told.proof.holds:
            return True
        now = await self._newest()
        if now.phase not in (Phase.NOT_STARTED, Phase.FAILED):
            self._hear()
            return False
        return True

    async def _look(self, session_id: int, proofs: list[Proof]) -> Told:
        """Return what the flag says, and add what proves that the metadata are in ZooKeeper, also if this fails.

        Unless it is in a pause or completed, our node was made before it was read.
        """
        await self._source.sync(self._flag.path, timeout=self._timeout)
        node = self._node
        has_joined = await node.is_there(session_id)
        has_stayed = has_joined and node.is_waited_for
        if not has_joined:
            node.leave()
            told = self._noted(await self._flag.read(self._timeout))
            if told.phase.pauses or told.phase is Phase.COMPLETED:
                self._may_have_moved = True
                proofs.append(told.proof)
                return told
            has_joined = await node.make(session_id)
        proofs.extend(node.proofs)
        told = self._noted(await self._flag.read(self._timeout))
        if not told.is_believed:
            return told
        if not told.phase.pauses:
            await self._settle(told, has_stayed=has_stayed)
        if told.phase is not Phase.PREPARATION:  # a coordinator that has gone on does not wait
            node.is_waited_for = has_joined and told.phase in (Phase.NOT_STARTED, Phase.FAILED)
        if told.phase.pauses and not node.is_waited_for:
            self._may_have_moved = True
        proofs[:] = [told.proof, *node.proofs]
        return told

    async def _settle(self, told: Told, *, has_stayed: bool) -> None:
        """Note that there is no pause. `has_stayed`: our node has been there since the last look, and is waited for."""
        if told.phase is Phase.COMPLETED:
            return
        last = self._seen
        was_missing = last is not None and last.migration == flag.NONE
        listing = await self._flag.listing(self._timeout) if told.is_missing or was_missing else None
        seen = Seen(told.migration, listing)
        if told.phase is Phase.FAILED:
            self._may_have_moved = False
        elif last is not None and not has_stayed:
            self._may_have_moved = self._may_have_moved or not last.no_migration_until(seen)
            self._noted(told)
        self._seen = seen

    def _noted(self, told: Told) -> Told:
        """Let no earlier proof hold from COMPLETED on, nor our node prove anything from COPYING on.

        Behind the switch the flag says nothing.
        Raises `MetadataUnavailable` if the metadata may have moved, and seem to be back without a failure.
        """
        if self._tree.has_switched:
            return told
        if told.phase is Phase.COMPLETED:
            if self._phase is not Phase.COMPLETED:
                self._hear()
            self._phase, self._node.is_waited_for, self._may_have_moved = Phase.COMPLETED, False, True
            self._tree.proofs.forget()
        elif told.phase is Phase.COPYING:  # this coordinator does not wait for a node that is still there
            if self._node.is_waited_for:
                self._hear()
            self._node.proves_nothing()
            self._may_have_moved = True
        elif told.phase is Phase.FAILED:
            pass
        elif self._phase is Phase.COMPLETED or (self._may_have_moved and not told.phase.pauses):
            self._tree.hold()
            raise MetadataUnavailable(
                f"the metadata have moved to Oxia, or may have, and {self._flag.path} says {told.phase.value} now, or"
                " is missing: bring its newest state back, or write FAILED if they are to stay in ZooKeeper; if there"
                " never was a migration, restart this process"
            )
        return told

    async def _newest(self) -> Told:
        return self._noted(await self._flag.newest(self._timeout))

    async def _check(self, timeout: float) -> None:
        """Raise `MetadataUnavailable` unless the flag says that ZooKeeper has the metadata."""
        try:
            told = self._noted(await self._flag.read(timeout))
        except MetadataDamaged as error:
            raise MetadataUnavailable(str(error)) from error
        if told.phase is Phase.COMPLETED:
            raise ConnectionLost("the metadata have just moved to Oxia")

    async def _ask(self) -> None:
        """Read the flag behind a change of it."""
        if self._tree.has_switched:
            return
        try:
            told = await self._flag.read(self._timeout)
        except MetadataDamaged:  # it says nothing of a move
            return
        with suppress(MetadataUnavailable):  # the look says it
            self._noted(told)

    # --- preparing ------------------------------------------------------------------------------------------

    async def _prepare(self, migration: Migration, session_id: int) -> None:
        event = "the metadata move to Oxia: nothing is written until they have"
        self._lines.write(_log.info, event, target=migration.target)
        await self._tree.drained()
        await self._end_what_goes_with_a_session(session_id)
        target = await self._opened(migration)
        if not await self._goes_on(migration):
            return
        if migration.phase is Phase.PREPARATION and self._node.unready_in == session_id:  # else the copy may have begun
            await check_empty(target, self._target_root, migration.target, self._timeout)
        await self._begin_new_numbers(target)
        mine = [each for each in self._tree.ephemeral if self._is_registration(each)]
        await carry_own(self._source, mine, session_id, target, self._scope, self._timeout)
        if self._node.unready_in == session_id and not await self._acknowledge(migration, session_id):
            return
        self._prepared_for = migration
        self._lines.write(_log.info, "ready for the move of the metadata to Oxia", target=migration.target)

    async def _goes_on(self, migration: Migration) -> bool:
        """Return False if the flag has changed. The next round handles the change. COMPLETED may be written again."""
        now = (await self._newest()).migration
        if now == migration or (now.phase is Phase.COMPLETED and now.says_the_same(migration)):
            return True
        self._hear()
        return False

    @property
    def _target_root(self) -> str:
        return self._root.removeprefix(self._scope)

    async def _begin_new_numbers(self, target: NodeTree) -> None:
        await begin_new_numbers(self._source, self._root, target, self._target_root, self._timeout)

    def _is_registration(self, path: str) -> bool:
        return path.startswith(f"{self._root}/{paths.AVAILABLE}/")

    async def _end_what_goes_with_a_session(self, session_id: int) -> None:
        await self._source.sync(self._root, timeout=self._timeout)
        parents = list(self._tree.numbered)
        ending = {each for each in self._tree.ephemeral if not self._is_registration(each)}
        for parent in parents:
            ending.update(await below(self._source, parent, self._timeout))
        await delete_own(self._source, ending, session_id, self._timeout)
        self._tree.ephemeral -= ending
        self._tree.numbered.difference_update(parents)

    async def _acknowledge(self, migration: Migration, session_id: int) -> bool:
        """Delete our nodes. Return False if the flag has changed."""
        ours = await self._node.all_of(session_id)
        if not await self._goes_on(migration):
            return False
        is_refused = False
        try:
            is_refused = not await self._node.delete(ours, migration, session_id)
        finally:
            if not is_refused:  # also if the answer is lost
                if ours and migration.phase is Phase.PREPARATION:
                    self._wrote_in = None  # the coordinator waits for us: all that we wrote will be copied
                self._node.leave()
                self._may_have_moved = True  # we have agreed
        if is_refused:
            self._hear()
            return False
        self._node.unready_in = None
        return True

    # --- Oxia -----------------------------------------------------------------------------------------------

    async def _opened(self, migration: Migration) -> NodeTree:
        if migration.target != self._target_url or self._leaving is not None:
            await self._leave_target()
        if self._target is None:
            self._target = await self._connect(flag.target_uri(migration, self._root))
            self._target_url = migration.target
        return self._target

    def _begin_to_leave(self) -> None:
        if self._target is not None and self._leaving is None:
            self._leaving = asyncio.get_running_loop().create_task(self._target.close())
            self._leaving.add_done_callback(heard)

    async def _leave_target(self) -> None:
        self._begin_to_leave()
        if self._leaving is not None:
            await asyncio.wait([self._leaving])  # which goes on if this is cancelled
            self._target, self._target_url, self._leaving = None, "", None

    async def _complete(self, migration: Migration, session_id: int) -> None:
        self._tree.hold()
        await self._tree.drained()
        target = await self._opened(migration)
        await check_same(self._source, self._root, target, self._target_root, migration.target, self._timeout)
        await self._begin_new_numbers(target)
        if not await self._goes_on(migration):  # it has failed meanwhile
            return
        self._tree.switch(target, self._scope)
        self._lines.write(_log.info, "the metadata are in Oxia", target=migration.target)
        if self._wrote_in == session_id and not self._tree.session.doubt:
            self._tree.session.doubt = DOUBT
            _log.error("the metadata are in Oxia, and may be incomplete", reason=DOUBT)

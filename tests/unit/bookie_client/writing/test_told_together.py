"""Acknowledgements that come together are counted together: nothing differs from counting them one by one."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import count
from types import SimpleNamespace

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie_client.connection.connection import BookieConnection
from bookie_client.connection.dialect_v2 import V2Dialect
from bookie_client.connection.dialect_v3 import V3Dialect
from bookie_client.connection.latency import Ticker
from bookie_client.connection.request import FramedRequest
from bookie_client.distribution import Quorums
from bookie_client.options import ClientOptions
from bookie_client.writing.add_state import AddState
from bookie_client.writing.fault_domains import SpreadAddState
from bookie_client.writing.pending_add import PendingAdd
from bookie_client.writing.pipeline import AddPipeline
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import CouldNotTell, V2Code, V3Status
from bookie_protocol.versioned import LedgerLife
from bookie_protocol.wire import v2, v3
from bookie_protocol.wire.framing import LENGTH_SIZE
from bookie_protocol.wire.v2 import CURRENT_VERSION, OpCode
from bookie_protocol.wire.varint import encode_varint
from tests.support.frames import add_response

LEDGERS = (7, 8)
BOOKIES = ("b1", "b2", "b3")


class OneByOneV2(V2Dialect):
    def acknowledged_run(self, data):
        return None


class OneByOneV3(V3Dialect):
    def acknowledged_run(self, data):
        return None


TOGETHER = {2: V2Dialect(), 3: V3Dialect()}
ONE_BY_ONE = {2: OneByOneV2(), 3: OneByOneV3()}


def answer(version, key, request, *, stored=True):
    """What a bookie sends when it stored an add, or when it is read-only."""
    ledger_id, entry_id = request.handle.ledger_id, request.entry_id
    if version == 2:
        code = V2Code.EOK if stored else V2Code.EREADONLY
        return v2.encode_response(CURRENT_VERSION, OpCode.ADDENTRY, code, ledger_id, entry_id)
    added = add_response(key, encode_varint(ledger_id), encode_varint(entry_id))
    if stored:
        return added
    message = v3.parse_response(added[LENGTH_SIZE:])
    message.status = message.addResponse.status = v3.status_code(V3Status.EREADONLY)
    return v3.encode_frame(message)


class Transport:
    def writelines(self, pieces):
        pass

    def get_write_buffer_size(self):
        return 0

    def get_extra_info(self, name):
        return None


class Channel:
    def __init__(self, connection):
        self.connection = connection

    def send_add(self, frame, key, request):
        self.connection.send(frame, key, request, 40)

    def send_adds(self, frames, adds):
        self.connection.send_many(frames, adds, 40)


class World:
    """Writers of several ledgers, whose bookies answer what and when they are told to."""

    def __init__(self, dialect, quorums, spread):
        self.dialect = dialect
        self.connections = {}
        self.changes = defaultdict(list)
        self.ended = []
        self.ticker = Ticker(1000)
        context = SimpleNamespace(
            traces=None,
            bookies=SimpleNamespace(changed=lambda _: asyncio.Event().wait()),  # none comes back
            options=ClientOptions(write_linger_bytes=1 << 40),
            pool=SimpleNamespace(dialect=dialect, channel=lambda bookie, _: Channel(self.connection(bookie))),
            transactions=count(16_300),  # the numbers get longer soon
        )
        self.pipelines = {each: self.pipeline(context, each, quorums, spread) for each in LEDGERS}

    def pipeline(self, context, ledger_id, quorums, spread):
        ensemble = BOOKIES[: quorums.ensemble]
        if spread:
            state = SpreadAddState(ledger_id, quorums, ensemble, suffices=lambda bookies: not bookies <= {"b1", "b2"})
        else:
            state = AddState(ledger_id, quorums, ensemble)

        async def change(failed, refusals):
            go_on = asyncio.get_running_loop().create_future()
            self.changes[ledger_id].append(go_on)
            await go_on
            # Those that were replaced before come back, perhaps to another position.
            free = iter(sorted({"b1", "b2", "b3", "b4", "b5", "b6"}.difference(state.ensemble)))
            return tuple(next(free) if i in failed else each for i, each in enumerate(state.ensemble))

        digest = digest_manager(DigestType.CRC32C, b"")
        pipeline = AddPipeline(
            context, state, digest, self.dialect.add_encoder(LedgerLife(ledger_id, 0), bytes(20)), change
        )
        # What happens next must not depend on the clock.
        pipeline._changes._options = SimpleNamespace(degraded_retry_interval=0, quarantine_time=0)
        return pipeline

    def connection(self, bookie):
        if bookie not in self.connections:
            connection = self.connections[bookie] = BookieConnection(
                bookie,
                self.dialect,
                max_frame_size=1 << 20,
                ticker=self.ticker,
                patience=10,
                silence_ticks=10,
                record=SimpleNamespace(refused=lambda *_, **__: None),
                on_closed=lambda _: None,
            )
            connection.connection_made(Transport())
        return self.connections[bookie]

    # --- what may happen ---

    async def submit(self, which, many):
        pipeline = self.pipelines[LEDGERS[which % len(LEDGERS)]]
        for number in range(many):
            if pipeline.state.failure is None:
                sent = await pipeline.intake.submit(bytes(number))
                sent.add_done_callback(lambda _, at=(pipeline.ledger_id, pipeline.state.last_pushed): self.end(at))

    def end(self, add):
        self.ended.append(add)

    async def answer(self, which, many, *, stored=True):
        """A bookie answers its oldest requests, in one piece."""
        names = sorted(self.connections)
        connection = self.connections[names[which % len(names)]]
        oldest = list(connection._outstanding.items())[:many]
        version = self.dialect.version
        frames = [
            answer(version, key, each[0] if isinstance(each, list) else each, stored=stored) for key, each in oldest
        ]
        connection.data_received(b"".join(frames))

    async def refuse(self, which, many):
        await self.answer(which, min(many, 1), stored=False)

    async def end_turn(self, which, many):
        for _ in range(3):
            await asyncio.sleep(0)

    async def end_change(self, which, many):
        await self.end_turn(0, 0)
        for change in self.changes[LEDGERS[which % len(LEDGERS)]]:
            if not change.done():
                change.set_result(None)
        await self.end_turn(0, 0)

    # --- what can be seen ---

    def seen(self):
        return self.ended, [self.seen_of(each) for each in self.pipelines.values()]

    def seen_of(self, pipeline):
        state, window = pipeline.state, pipeline._window
        pending = [(add.entry_id, add.acked, add.acks, add.failed, add.waiting) for add in state._pending]
        room = window.entries, window.nbytes, window.lingering
        return state.lac, state.confirmed_length, state.ensemble, type(state.failure), pending, room, state.idle

    async def close(self):
        for pipeline in self.pipelines.values():
            assert type(pipeline.state.failure) is not CouldNotTell  # a defect of this world or of the client
            await pipeline.close()
        for connection in self.connections.values():
            self.ticker.detach(connection._tick)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "answer", "answer", "answer", "refuse", "end_turn", "end_change"]),
        st.integers(0, 5),
        st.integers(1, 12),
    ),
    min_size=20,
    max_size=40,
)


@pytest.mark.parametrize("version", [2, 3])
@settings(max_examples=60)
@given(
    quorums=st.sampled_from([(1, 1, 1), (3, 3, 2), (3, 3, 3), (3, 2, 1), (3, 2, 2)]), steps=STEPS, spread=st.booleans()
)
def test_whatever_happens_it_is_as_one_by_one(version, quorums, steps, spread):
    spread = spread and quorums[2] == 2  # bookies of one domain that do not suffice must not be all there are
    together, one_by_one = (
        after(steps, dialects[version], Quorums(*quorums), spread) for dialects in (TOGETHER, ONE_BY_ONE)
    )
    assert together == one_by_one


def after(steps, dialect, quorums, spread):
    async def run():
        world = World(dialect, quorums, spread)
        for name, which, many in (*steps, ("end_turn", 0, 1)):
            await getattr(world, name)(which, many)
        seen = world.seen()
        await world.close()
        return seen

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


async def test_many_adds_are_counted_by_one_call(monkeypatch):
    world = World(TOGETHER[3], Quorums(3, 3, 2), spread=False)
    calls = []
    counted = AddState.acknowledged_run

    def counting(state, add, run, at, bookie):
        end = counted(state, add, run, at, bookie)
        calls.append((state.ledger_id, end - at))
        return end

    monkeypatch.setattr(AddState, "acknowledged_run", counting)
    for which, many in ((0, 30), (1, 20)):
        await world.submit(which, many)
    await world.end_turn(0, 0)
    await world.answer(0, 50)
    assert calls == [(7, 30), (8, 20)]
    await world.close()


async def test_an_add_that_comes_in_the_turn_in_which_all_before_it_ended_is_under_way():
    """Those left early, and were answered at once: the end of the turn that sends adds is still to come."""
    world = World(TOGETHER[3], Quorums(1, 1, 1), spread=False)
    pipeline = world.pipelines[7]
    await world.submit(0, 1)
    pipeline._settle()
    await world.answer(0, 1)
    pipeline._settle()
    assert pipeline._idle.is_set()
    await world.submit(0, 1)
    assert not pipeline._idle.is_set()
    await world.close()


ENSEMBLES = (("a", "b", "c"), ("c", "a", "b"), ("d", "b", "a"))
BITS = st.integers(0, 7)


@pytest.mark.parametrize("bookie", ["a", "b", "c", "d", "e"])
@given(
    write_quorum=st.sampled_from([2, 3]),
    changes=st.integers(0, 1),
    adds=st.lists(st.tuples(BITS, BITS, BITS, st.sampled_from(ENSEMBLES)), min_size=1, max_size=12),
)
def test_adds_in_any_state_are_counted_as_one_by_one(bookie, write_quorum, changes, adds):
    """Acknowledged before, failed before, sent to an ensemble that stood before a change."""

    def run():
        return [pending(entry_id, *each) for entry_id, each in enumerate(adds)]

    state = AddState(7, Quorums(3, write_quorum, 2), ENSEMBLES[0])
    state._ensemble.changes = changes
    together, one_by_one, at = run(), run(), 0
    while at < len(together):
        at = state.acknowledged_run(together[at], together, at, bookie)
    for add in one_by_one:
        state.acknowledged(add, bookie)
    assert list(map(fields, together)) == list(map(fields, one_by_one))


def pending(entry_id, acked, failed, waiting, ensemble):
    add = PendingAdd(entry_id, 0, ensemble)
    add.handle = None
    add.acked, add.failed, add.waiting, add.acks = acked, failed & ~acked, waiting, acked.bit_count()
    return add


def fields(add):
    return add.acked, add.failed, add.waiting, add.acks


class Told(FramedRequest):
    def __init__(self, name, told):
        self.name, self.told, self.key = name, told, b""

    @property
    def frame(self):
        return b""

    def accepted(self, bookie, answer):
        self.told.append(self.name)

    def refused(self, bookie, error):
        raise AssertionError(error)

    def describe(self):
        return self.name


@pytest.mark.parametrize("together", [False, True])
async def test_answers_to_requests_with_one_key_that_come_together_end_one_each(together):
    told = []
    world = World((TOGETHER if together else ONE_BY_ONE)[2], Quorums(1, 1, 1), spread=False)
    connection = world.connection("b1")
    frames = {}
    for name, entry_id in (("first", 0), ("other", 1), ("second", 0), ("third", 0)):
        request = Told(name, told)
        frames[name] = v2.encode_response(CURRENT_VERSION, OpCode.ADDENTRY, V2Code.EOK, 7, entry_id)
        request.key = frames[name][-16:]
        connection.send_many(b"", [request], 40)
    connection.data_received(b"".join(frames[name] for name in ("first", "second", "other")))
    assert told == ["first", "second", "other"]
    assert connection.outstanding == 1
    await world.close()

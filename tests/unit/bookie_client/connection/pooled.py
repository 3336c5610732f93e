"""A pool of connections to one model bookie."""

from __future__ import annotations

from bookie_client.connection.pool import ChannelPool
from bookie_client.options import ClientOptions
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.versioned import LedgerLife
from tests.support.model_bookie import ModelBookie, ModelBookieServer
from tests.unit.bookie_client.connection.requests import Probe

FAST = {"add_timeout": 0.2, "read_timeout": 0.2, "reconnect_delay": 0.05, "connect_timeout": 1.0}


class Rig:
    def __init__(self, **options):
        self.server = ModelBookieServer(ModelBookie("b"))
        self.resolved = 0
        self.error = None
        self.pool = ChannelPool(self.resolve, ClientOptions(**{**FAST, **options}))
        self.digest = digest_manager(DigestType.CRC32C, b"")
        self.transactions = 0

    async def resolve(self, bookie_id):
        self.resolved += 1
        if self.error is not None:
            raise self.error
        return "127.0.0.1", self.server.port

    def add(self, entry_id=0):
        self.transactions += 1
        entry = self.digest.encode(1, entry_id, -1, 5, b"hello")
        key, frame = self.pool.dialect.add_encoder(LedgerLife(1, 0), bytes(20))(self.transactions, entry_id, entry)
        probe = Probe()
        self.pool.channel("b").send_add(frame, key, probe)
        return probe

    def read(self, entry_id=0, ledger_id=1):
        self.transactions += 1
        key, frame = self.pool.dialect.read(self.transactions, ledger_id, entry_id)
        probe = Probe()
        self.pool.channel("b").send_read(frame, key, probe)
        return probe

"""A ledger belongs to the key that it was begun with, whatever key that is, in every engine and after every end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bookie_protocol.errors import V2Code, V3Status
from bookie_protocol.wire.v2 import Flag
from tests.support.frames import (
    KEY,
    NO_KEY,
    OTHER_KEY,
    entry,
    v2_add,
    v2_code,
    v2_fence,
    v2_read,
    v3_add,
    v3_fence,
    v3_status,
    v3_write_lac,
)
from tests.support.served_bookie import RawClient, ServedBookie
from tests.support.stored_disks import ENGINES

BEGINNINGS: dict[str, tuple[Callable[[int], bytes], bytes]] = {
    "an add of version 2 without a key": (lambda ledger: v2_add(entry(ledger, 0), NO_KEY), NO_KEY),
    "an add of version 3 with an empty key": (lambda ledger: v3_add(entry(ledger, 0), b""), b""),
    "a recovery's add with an empty key": (lambda ledger: v3_add(entry(ledger, 0), b"", recovery=True), b""),
    "an explicit LAC with an empty key": (lambda ledger: v3_write_lac(ledger, -1, b""), b""),
    "a key of a few zeros": (lambda ledger: v3_add(entry(ledger, 0), b"\0\0"), b"\0\0"),
    "a key": (lambda ledger: v2_add(entry(ledger, 0)), KEY),
}
"""How a ledger is begun, and its key."""

V2 = Callable[[int, bytes], bytes]
VERSION_2: list[V2] = [
    lambda ledger, key: v2_add(entry(ledger, 1), key),
    lambda ledger, key: v2_add(entry(ledger, 1), key, Flag.RECOVERY_ADD),
    lambda ledger, key: v2_add(entry(ledger, 1), key, Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY),
    lambda ledger, key: v2_fence(ledger, key=key),
    lambda ledger, key: v2_fence(ledger, 0, key),
]
VERSION_3: list[V2] = [
    lambda ledger, key: v3_add(entry(ledger, 1), key),
    lambda ledger, key: v3_add(entry(ledger, 1), key, recovery=True, priority=True),
    lambda ledger, key: v3_add(entry(ledger, 1), key, sync=False),
    lambda ledger, key: v3_fence(ledger, key=key),
    lambda ledger, key: v3_fence(ledger, 0, key),
    lambda ledger, key: v3_write_lac(ledger, 0, key),
]


async def refused(port: int, ledger: int, key: bytes) -> None:
    async with await RawClient.connect(port) as client:
        for make in VERSION_3:
            assert v3_status(await client.ask(make(ledger, key))) == V3Status.EUA
    async with await RawClient.connect(port) as client:
        for make in VERSION_2 if len(key) == len(KEY) else []:
            assert v2_code(await client.ask(make(ledger, key))) == V2Code.EUA


@pytest.mark.parametrize("engine", ENGINES)
async def test_every_other_key_is_refused_by_every_operation(tmp_path: Path, engine: str) -> None:
    bookie = ServedBookie(tmp_path, {"ledgerStorageClass": ENGINES[engine]})
    await bookie.start()
    for ledger, (begin, _) in enumerate(BEGINNINGS.values(), 1):
        async with await RawClient.connect(bookie.port) as client:
            frame = begin(ledger)
            answer = await client.ask(frame)
            assert (v3_status(answer) if frame[4] == 0x0A else v2_code(answer)) == 0
    for end in (bookie.crash, bookie.stop, None):
        for ledger, (name, (_, own)) in enumerate(BEGINNINGS.items(), 1):
            for key in (OTHER_KEY, KEY, NO_KEY, b"", KEY[:-1]):
                if key != own and key.strip(b"\0") + own.strip(b"\0"):
                    await refused(bookie.port, ledger, key)
            async with await RawClient.connect(bookie.port) as client:
                assert v3_status(await client.ask(v3_add(entry(ledger, 2), own))) == 0, name
                if "add" in name:
                    assert v2_code(await client.ask(v2_read(ledger, 0))) == 0
                    assert v2_code(await client.ask(v2_read(ledger, 1))) == V2Code.ENOENTRY
        if end is not None:
            await end()
            await bookie.start()
    await bookie.stop()

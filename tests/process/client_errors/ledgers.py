"""The ledgers that these tests begin with."""

from __future__ import annotations

PASSWORD = b"pw"
AT_ONCE = {"reconnect_delay": 0.01, "max_reconnect_delay": 0.05}
SHORT = {"add_timeout": 0.4, "read_timeout": 0.4, **AT_ONCE}


async def written(client, count=5, ack_quorum=2):
    """An open ledger, all of whose entries but the last are known to be confirmed."""
    ledger = await client.create(write_quorum=3, ack_quorum=ack_quorum, password=PASSWORD)
    for i in range(count):
        await ledger.append(b"%d" % i)
    return ledger


async def closed(client, count=5):
    """Its id."""
    ledger = await written(client, count)
    await ledger.close()
    return ledger.ledger_id

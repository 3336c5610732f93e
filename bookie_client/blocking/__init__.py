"""The client for programs without an event loop: the same calls, each returning when it is done.

    loop_thread.py   one event loop on a thread of its own, calls into it, and iterators of it
    appends.py       appends of many threads in one order, handed over in batches
    handles.py       the ledger handles
    client.py        the client
    streams.py       streams of ledgers

Nothing of the protocol is done here: everything is handed to the asynchronous client.
"""

from bookie_client.blocking.client import BlockingClient
from bookie_client.blocking.handles import BlockingAdvancedLedgerWriter, BlockingLedgerReader, BlockingLedgerWriter

__all__ = [
    "BlockingAdvancedLedgerWriter",
    "BlockingClient",
    "BlockingLedgerReader",
    "BlockingLedgerWriter",
]

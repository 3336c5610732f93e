"""The common part of every RocksDB database of ours.

- What is written to the write-ahead log stays in a buffer until `flush_wal` is called, or the buffer is full: so it is
  in that call, which lets go of the interpreter, that a slow disk is waited for. `write` holds it.
- A torn record at the tail of the log is dropped at open; any other damage in it fails the open. RocksDB's own default
  would drop everything behind the damage without a word.
- The size of a log that is no more written to, but needed still, is in the manifest: without it a database does not
  open. Of the log in use RocksDB knows nothing: whether its end is there is for a seal to say, of each database its
  own.
"""

from __future__ import annotations

import posixpath
from typing import Final

from rocksdict import DBRecoveryMode, Options

WAL_BUFFER_BYTES: Final = 8 << 20
_NO_SETTER: Final = posixpath.dirname(__file__)
"""The folder of a file with what the binding has no setter for."""


def common_options() -> Options:
    """Return the options for keys and values that are byte strings."""
    options = Options.load_latest(_NO_SETTER)[0]
    options.set_writable_file_max_buffer_size(WAL_BUFFER_BYTES)
    options.create_if_missing(True)
    options.set_paranoid_checks(True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    return options

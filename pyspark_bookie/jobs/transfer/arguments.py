"""Arguments of the jobs that make ledgers.

Only `copy` selects ledgers of a cluster; it adds those arguments itself.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pyspark_bookie.common.secrets import read_secret
from pyspark_bookie.jobs.framework.arguments import COUNT, UsageError, argument
from pyspark_bookie.jobs.framework.common import CommonArguments
from pyspark_bookie.jobs.transfer.machine import TransferSettings, check_name


@dataclass(frozen=True, kw_only=True)
class TransferArguments(CommonArguments):
    """Of `restore`, `copy` and `import`."""

    keep_ids: bool = argument(
        False, help="The new ledgers have the ids that they had; else the cluster gives new ones."
    )
    to_stream: str | None = argument(
        None, help="When all are there, add them to this stream, which is made if there is none.", metavar="NAME"
    )
    ensemble: int | None = argument(None, help="Bookies of each new ledger. Default: as it was.", kind=COUNT)
    write_quorum: int | None = argument(None, help="Copies of each entry. Default: as it was.", kind=COUNT)
    ack_quorum: int | None = argument(None, help="Copies that a write waits for. Default: as it was.", kind=COUNT)
    new_password_file: str | None = argument(
        None,
        help="File with the new ledgers' password. Default: the copied ledger's; empty for ledgers from files.",
        metavar="FILE",
    )
    name: str | None = argument(
        None,
        help="Name of the transfer: runs of one name go on where the last one ended. Default: by its source"
        " and stream.",
    )

    def settings(self, job: str, source: str) -> TransferSettings:
        """`source`: a text that tells the source from others."""
        if self.keep_ids and self.to_stream is not None:
            raise UsageError("--keep-ids and --to-stream exclude each other: a stream's ledgers are its own")
        whole = source if self.to_stream is None else f"{source} {self.to_stream}"
        digest = hashlib.sha256(whole.encode()).hexdigest()[:12]
        if self.new_password_file is not None:
            read_secret("--new-password-file", self.new_password_file)  # told now if it cannot be read
        return TransferSettings(
            name=check_name(self.name or f"{job}-{digest}"),
            keep_ids=self.keep_ids,
            stream=self.to_stream,
            ensemble=self.ensemble,
            write_quorum=self.write_quorum,
            ack_quorum=self.ack_quorum,
            password_file=self.new_password_file,
        )

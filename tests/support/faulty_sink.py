"""The sink with faults that Spark's own processes meet: a commit whose answer is lost, and a pause in front of one.

`spark.dataSource.register(LostAnswers)` gives the format `lost-answers`: as `bookkeeper`, but while the file that
`metadata.lose` names exists (it is taken away), a commit raises after it has changed the stream.

`spark.dataSource.register(Gated)` gives the format `gated`: as `bookkeeper`, but the tasks of the batch that
`CommitGate.shut` names wait, when their ledgers are written and closed, until the gate is opened.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark_bookie import DefaultSource
from pyspark_bookie.sink.writers import BatchWriter, StreamingWriter
from tests.support.until import until_true

LOST = "the answer to the commit was lost"
_GATE_SECONDS = 300.0


def _lose(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    raise ConnectionError(LOST)


class LostAnswersStreamingWriter(StreamingWriter):
    def commit(self, messages, batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        _lose(self._options.ledger_metadata["lose"])


class LostAnswersBatchWriter(BatchWriter):
    def commit(self, messages) -> None:
        super().commit(messages)
        _lose(self._options.ledger_metadata["lose"])


class LostAnswers(DefaultSource):
    """The format `lost-answers`."""

    @classmethod
    def name(cls) -> str:
        return "lost-answers"

    def writer(self, schema, overwrite):
        return LostAnswersBatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema, overwrite):
        return LostAnswersStreamingWriter(self.options, schema, overwrite)


class CommitGate:
    """A gate between tasks and commit, in a folder that the processes of Spark share. `options`: of the sink."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.options = {"metadata.gate": str(folder)}

    def shut(self, batch: int | None = None) -> None:
        """For one batch of a streaming query, or the next batch write. The folder is made."""
        self._folder.mkdir()
        (self._folder / "shut").write_text(str(batch))

    def open(self) -> None:
        (self._folder / "shut").unlink()

    def until_written(self) -> None:
        """A task of the batch has written and closed its ledgers; others may still write."""
        until_true((self._folder / "written").exists, _GATE_SECONDS)

    def until_committing(self) -> None:
        """Spark has asked for the commit of the batch, and nothing of it was done yet."""
        until_true((self._folder / "committing").exists, _GATE_SECONDS)

    def wait(self, batch: int | None) -> None:
        """In a task, behind its writing."""
        if self.is_for(batch):
            (self._folder / "written").touch()
            until_true(lambda: not self.is_for(batch), _GATE_SECONDS)

    def is_for(self, batch: int | None) -> bool:
        try:
            return (self._folder / "shut").read_text() == str(batch)
        except FileNotFoundError:
            return False

    def pass_on(self) -> None:
        """In the driver's process that commits."""
        if (self._folder / "written").exists():
            (self._folder / "committing").touch()


class GatedStreamingWriter(StreamingWriter):
    def __init__(self, raw, schema, overwrite) -> None:
        CommitGate(Path(raw["metadata.gate"])).pass_on()
        super().__init__(raw, schema, overwrite)

    def write(self, iterator):
        written = super().write(iterator)
        CommitGate(Path(self._options.ledger_metadata["gate"])).wait(written.batch_id)
        return written


class GatedBatchWriter(BatchWriter):
    def write(self, iterator):
        written = super().write(iterator)
        CommitGate(Path(self._options.ledger_metadata["gate"])).wait(None)
        return written

    def commit(self, messages) -> None:
        CommitGate(Path(self._options.ledger_metadata["gate"])).pass_on()
        super().commit(messages)


class Gated(DefaultSource):
    """The format `gated`."""

    @classmethod
    def name(cls) -> str:
        return "gated"

    def writer(self, schema, overwrite):
        return GatedBatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema, overwrite):
        return GatedStreamingWriter(self.options, schema, overwrite)

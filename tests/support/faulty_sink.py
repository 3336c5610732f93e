"""The sink with faults that Spark's own processes meet: a commit whose answer is lost, and tasks that fail.

`spark.dataSource.register(LostAnswers)` gives the format `lost-answers`: as `bookkeeper`, but while the file that
`metadata.lose` names exists (it is taken away), a commit raises after it has changed the stream.
"""

from __future__ import annotations

import os

from pyspark_bookie import DefaultSource
from pyspark_bookie.sink.batch import BatchWriter
from pyspark_bookie.sink.streaming import StreamingWriter

LOST = "the answer to the commit was lost"


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

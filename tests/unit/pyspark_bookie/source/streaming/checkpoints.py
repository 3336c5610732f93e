"""The positions where queries begin, and the offsets that their checkpoints give back."""

from __future__ import annotations

import json

from pyspark_bookie.source.streaming.offsets import Start, parse_offset
from pyspark_bookie.source.streaming.progress import TriggerLimit

ALL = TriggerLimit()
EARLIEST, LATEST = Start("earliest"), Start("latest")


def again(document):
    """As the checkpoint gives it back."""
    return parse_offset(json.loads(json.dumps(document)))

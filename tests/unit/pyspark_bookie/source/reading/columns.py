"""Columns of entries, as the source fills them."""

from __future__ import annotations

import numpy as np

from pyspark_bookie.common.options import parse
from pyspark_bookie.source.options import SourceOptions
from pyspark_bookie.source.reading.arrow import columns_of
from pyspark_bookie.source.schema import arrow_schema, full_schema


def schema(**options):
    raw = {"metadataServiceUri": "embedded://x", "scope": "all", **options}
    return arrow_schema(full_schema(parse(raw, SourceOptions)))


def taken(entries):
    """Sizes, payloads one behind the other, last adds confirmed."""
    found = columns_of(entries)
    sizes, lacs = found.sizes(), found.lacs()
    assert (sizes.dtype, lacs.dtype) == (np.int32, np.int64)
    values = np.full(int(sizes.sum()), 255, np.uint8)
    found.copy_payloads(values)
    return sizes.tolist(), values.tobytes(), lacs.tolist()

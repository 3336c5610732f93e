"""File systems by URI, for archives, dumps and reports: those of pyarrow, which driver and Python workers reach without
Java: `file:///...`, plain paths, `s3://...` (or `s3a://...`, as Hadoop writes it), `gs://...`, `hdfs://...`.

Credentials are what pyarrow finds in the environment of the process, not what Hadoop's configuration says.

Any thread.
"""

from __future__ import annotations

import re
from os.path import abspath
from typing import TYPE_CHECKING, Final

from pyspark_bookie.common.errors import OPTION, PodkeeperSparkError

if TYPE_CHECKING:
    import pyarrow.fs as pafs

_HADOOPS_S3: Final = re.compile(r"^s3[an]://")


def file_system(argument: str, uri: str) -> tuple[pafs.FileSystem, str]:
    """The file system and the path in it. Raises `PodkeeperSparkError` (OPTION), which names `argument`, for a URI that
    cannot be used."""
    import pyarrow as pa
    import pyarrow.fs as pafs

    try:
        if "://" not in uri:
            found, path = pafs.LocalFileSystem(), abspath(uri)
        else:
            found, path = pafs.FileSystem.from_uri(_HADOOPS_S3.sub("s3://", uri))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, ValueError) as error:
        raise PodkeeperSparkError(OPTION, f"{argument} {uri}: {' '.join(str(error).split())}") from error
    return found, path.rstrip("/") or "/"

"""The program for `spark-submit`: `job.py NAME [arguments]`, as `bookie job NAME [arguments]`.

It stands outside of the package, because Spark puts the folder of the program on the search path.
"""

from __future__ import annotations

import sys

from pyspark_bookie.jobs.framework.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m pyspark_bookie.jobs NAME [arguments]`."""

import sys

from bookie_protocol.quiet import quiet_grpc
from pyspark_bookie.jobs.framework.command import main

if __name__ == "__main__":
    quiet_grpc()
    sys.exit(main(sys.argv[1:], own_process=True))

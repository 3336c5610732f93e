"""`python -m pyspark_bookie.jobs NAME [arguments]`."""

import sys

from pyspark_bookie.jobs.framework.command import main, quiet_grpc

if __name__ == "__main__":
    quiet_grpc()
    sys.exit(main(sys.argv[1:], own_process=True))

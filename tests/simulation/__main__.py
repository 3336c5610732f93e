"""Runs seeds, or replays one with its trace.

python -m tests.simulation --seeds 0:300
python -m tests.simulation --seeds 0:10000 --jobs 2
python -m tests.simulation --seeds 17 --trace
python -m tests.simulation --of healing --seeds 0:100
python -m tests.simulation --of streams --seeds 0:100
python -m tests.simulation --of lives --seeds 0:100
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.support.simulation.runner import DRAWS, LEDGERS, run_seed, run_seeds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", required=True, help="one seed, or FIRST:END (END is not run)")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--of", choices=DRAWS, default=LEDGERS, help="what is simulated")
    parser.add_argument("--trace", action="store_true", help="print every event (one seed)")
    parser.add_argument("--counts", action="store_true", help="say how often what happened")
    parser.add_argument("--keep-going", action="store_true", help="run all seeds although some fail")
    arguments = parser.parse_args()
    first, _, end = arguments.seeds.partition(":")
    seeds = range(int(first), int(end)) if end else range(int(first), int(first) + 1)
    if arguments.trace:
        return 1 if run_seed(seeds[0], echo=print, of=arguments.of).failed else 0
    failed, counts = 0, Counter[str]()
    started, cpu = time.perf_counter(), time.process_time()
    for report in run_seeds(seeds, arguments.jobs, of=arguments.of):
        counts.update(report.counts)
        if report.failure is not None:
            failed += 1
            print(report.failure, flush=True)
            if not arguments.keep_going:
                break
    seconds = time.perf_counter() - started
    print(f"{len(seeds)} seeds, {failed} failed, {seconds:.1f} s ({time.process_time() - cpu:.1f} s CPU here)")
    if arguments.counts:
        for what, number in sorted(counts.items()):
            print(f"  {what}: {number}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.campaign`: run a campaign, and tell what it did and found. Exit code 1: something did not hold."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.campaign import network
from tests.campaign.faults.table import FOR_JAVA, NAMES
from tests.campaign.history import History
from tests.campaign.kinds import OURS, java_bookies
from tests.campaign.planting.defects import DEFECTS, plant
from tests.campaign.report import report
from tests.campaign.rounds import Campaign
from tests.campaign.shim.control import library
from tests.interop.java_programs import PROJECT


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--zookeeper", action="store_true", help="instead of the embedded metadata service")
    parser.add_argument(
        "--java", action="store_true", help="a Java client writes too; needs Maven, and takes ZooKeeper"
    )
    parser.add_argument(
        "--java-bookies",
        action="store_true",
        help="Apache BookKeeper's bookies, with the faults that apply; needs Maven, and takes ZooKeeper",
    )
    parser.add_argument("--planted", choices=sorted(DEFECTS), help="plant this defect; ends at the first breach")
    parser.add_argument("--faults", action="append", choices=sorted(NAMES), help="only these kinds")
    parser.add_argument("--folder", type=Path, help="where the processes keep their files; it stays")
    arguments = parser.parse_args()
    lacking = network.missing()
    if lacking is not None:
        print(f"The campaign cannot run here: {lacking}.", file=sys.stderr)
        return 2
    library()
    names = frozenset(arguments.faults or (FOR_JAVA if arguments.java_bookies else NAMES))
    kind = java_bookies(PROJECT.class_path()) if arguments.java_bookies else OURS
    if arguments.planted:
        plant(arguments.planted)
        names = frozenset(DEFECTS[arguments.planted].faults)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="podkeeper-campaign-"))
    folder.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(
        folder,
        arguments.seed,
        60 * arguments.minutes,
        zookeeper=arguments.zookeeper or arguments.java or arguments.java_bookies,
        java=PROJECT.class_path() if arguments.java else None,
        plant=arguments.planted,
        stop_at_breach=arguments.planted is not None,
        names=names,
        kind=kind,
    )
    history = asyncio.run(_until_told(campaign))
    replay = f"python -m tests.campaign --seed {arguments.seed} --minutes {arguments.minutes:g}"
    replay += " --zookeeper" if arguments.zookeeper else ""
    replay += " --java" if arguments.java else ""
    replay += " --java-bookies" if arguments.java_bookies else ""
    replay += f" --planted {arguments.planted}" if arguments.planted else ""
    replay += "".join(f" --faults '{name}'" for name in arguments.faults or ())
    print(report(history, replay, campaign.memory))
    if arguments.folder is None and not history.breaches:
        shutil.rmtree(folder)
    else:
        print(f"files: {folder}")
    return 1 if history.breaches else 0


async def _until_told(campaign: Campaign) -> History:
    """SIGTERM and SIGINT end it as its time does: nothing is left behind, and what was found is told."""
    run = asyncio.create_task(campaign.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, run.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await run
    return campaign.history


if __name__ == "__main__":
    sys.exit(main())

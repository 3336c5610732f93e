"""Whether volumes and cookies went only when nothing needed them: told by the API server and ZooKeeper alone.

The recorder follows the claims of a namespace and the cookies of a metadata root. The moment one goes, it lists all
ledgers itself: none may name the bookie. What the test takes away itself, or allows, is announced with `expect`, and
ledgers that people give up with `give_up`.

Threads: two of its own. `expect`, `give_up`, `judge` and `stop` are called by the test.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kazoo.client import KazooClient

from bookie_client import BlockingClient
from bookie_protocol.errors import NoSuchLedger
from tests.e2e.support.kube import Kube, Object

_POLL: Final = 0.2


@dataclass
class Removal:
    what: str
    bookie: str
    """Its pod's name."""
    at: float
    ledgers: tuple[int, ...]
    """That named it when it went."""
    expected: bool


@dataclass
class Recorder:
    """`hosts` and `root` of the metadata service; `kube` is the recorder's own."""

    kube: Kube
    hosts: str
    root: str
    removals: list[Removal] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._expected: set[str] = set()
        self._given_up: set[int] = set()
        self._stop = threading.Event()
        # By default it would look ever more rarely while the service is away, and be blind for a minute after that.
        retry = {"max_tries": -1, "max_delay": 1}
        self._zookeeper = KazooClient(hosts=self.hosts, timeout=10, connection_retry=retry)
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._claims, self._cookies)]

    def start(self) -> Recorder:
        self._zookeeper.start(timeout=30)
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=60)
        self._zookeeper.stop()
        self._zookeeper.close()
        self.kube.close()

    def expect(self, *names: str) -> None:
        """Claims and pods whose claims and cookies the test removes itself, or lets go with their data."""
        self._expected |= set(names)

    def give_up(self, *ledgers: int) -> None:
        """These may name a bookie that goes."""
        self._given_up |= set(ledgers)

    def judge(self) -> None:
        """AssertionError if something went that a ledger still named, or if the recorder could not look."""
        assert not self.faults, self.faults
        unproven = [each for each in self.removals if set(each.ledgers) - self._given_up and not each.expected]
        assert not unproven, f"gone while ledgers named it: {unproven}"

    def gone(self, bookie: str) -> list[str]:
        """What went of a bookie: `cookie`, and names of claims."""
        return [each.what for each in self.removals if each.bookie == bookie]

    # --- inside -------------------------------------------------------------------------------------------------------

    def _claims(self) -> None:
        marked: set[str] = set()

        def look(claims: dict[str, Object]) -> bool:
            for name, claim in claims.items():
                uid = claim["metadata"]["uid"]
                if claim["metadata"].get("deletionTimestamp") and uid not in marked:
                    marked.add(uid)
                    self._removed(name, bookie_of_claim(name))
            return self._stop.is_set()

        while not self._stop.is_set():
            try:
                self.kube.wait_for("PersistentVolumeClaim", look, 2, "claims")
            except AssertionError:
                continue  # two seconds without a change
            except Exception as error:
                self.faults.append(f"claims: {error!r}")
                self._stop.wait(1)

    def _cookies(self) -> None:
        known: set[str] = set()
        path = f"{self.root}/cookies"
        while not self._stop.wait(_POLL):
            try:
                if not self._zookeeper.connected or not self._zookeeper.exists(path):
                    continue
                now = set(self._zookeeper.get_children(path))
            except Exception:
                continue  # the metadata service is away: nothing can be removed either
            for bookie_id in known - now:
                self._removed("cookie", bookie_id.split(".")[0])
            known = now

    def _removed(self, what: str, bookie: str) -> None:
        expected = bool(self._expected & {what, bookie})
        try:
            ledgers = tuple(self._naming(bookie))
        except Exception as error:
            ledgers = ()
            if not expected:
                self.faults.append(f"{what} of {bookie}: the ledgers could not be listed: {error!r}")
        self.removals.append(Removal(what, bookie, time.time(), ledgers[:20], expected))

    def _naming(self, bookie: str) -> Iterable[int]:
        with BlockingClient(f"zk+hierarchical://{self.hosts.replace(',', ';')}{self.root}") as client:
            for ledger_id in client.list():
                try:
                    named = client.metadata(ledger_id).all_bookies()
                except NoSuchLedger:
                    continue
                if any(each.startswith((f"{bookie}.", f"{bookie}:")) for each in named):
                    yield ledger_id


def bookie_of_claim(claim: str) -> str:
    """`journal-0-prod-bookie-2` is of `prod-bookie-2`."""
    return claim.split("-", 2)[2] if claim.split("-")[0] in ("journal", "ledger", "index") else claim

"""The etcd that the operator runs, as far as the operator sees it: its list of members, and which of them run.

It notes in `violations` what no etcd bears: a member that starts without its data, and a list that loses its majority.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

from bookie_operator.api.etcd import EtcdError
from bookie_operator.builders import etcd
from bookie_operator.crds import names
from bookie_operator.world.facts import EtcdFacts, Member, MemberHealth
from tests.support.fake_kubernetes.objects import Object


class FakeEtcd:
    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self.running: dict[str, int] = {}
        """Ids by pod name."""
        self.data: dict[str, int] = {}
        """Ids by UID of the claim that their data are on."""
        self.errors: dict[str, tuple[str, ...]] = {}
        """Errors that pods tell, by their names."""
        self.silent: set[str] = set()
        """Pods that run and do not answer."""
        self.calls: list[str] = []
        self.violations: list[str] = []
        self._ids: Iterator[int] = count(1)

    # --- what the operator asks ---------------------------------------------------------------------------------------

    async def look(self, hosts: Mapping[str, str]) -> EtcdFacts | None:
        answering = [pod for pod in hosts if pod in self.running and pod not in self.silent]
        leader = min(self._serving(), default=0) if self._has_majority() else 0
        if not answering or not leader:
            return None
        health = {
            pod: MemberHealth(self.running[pod], leader, "3.6.5", 1000, self.errors.get(pod, ())) for pod in answering
        }
        return EtcdFacts(tuple(self.members.values()), health)

    async def remove_member(self, hosts: Mapping[str, str], member: int) -> None:
        self.calls.append("remove")
        self._needs_majority()
        if member not in self.members:
            raise EtcdError("member not found")
        del self.members[member]
        if member in self.running.values():
            self.violations.append(f"{member:x} was removed while it ran")

    async def add_member(self, hosts: Mapping[str, str], peer_url: str) -> None:
        self.calls.append("add")
        self._needs_majority()
        if any(peer_url in each.peer_urls for each in self.members.values()):
            raise EtcdError("peer URLs already exist")
        self._list(peer_url)

    # --- what pods do -------------------------------------------------------------------------------------------------

    def held(self, pod: Object, claim: str) -> Object | None:
        """Return the status of a pod that waits in its init container; None: it may start."""
        if claim in self.data or names.ETCD_START in (pod["metadata"].get("annotations") or {}):
            return None
        ended = {"terminated": {"exitCode": etcd.EMPTY}}
        look = {"name": etcd.LOOK, "state": {"running": {}}, "lastState": ended, "restartCount": 1}
        waits = {"name": etcd.NAME, "state": {"waiting": {"reason": "PodInitializing"}}, "started": False}
        return {"phase": "Pending", "initContainerStatuses": [look], "containerStatuses": [waits]}

    def start(self, pod: Object, claim: str) -> None:
        name = pod["metadata"]["name"]
        (container,) = pod["spec"]["containers"]
        options = dict(word.removeprefix("--").split("=", 1) for word in container["command"][1:])
        urls = dict(each.split("=", 1) for each in options["initial-cluster"].split(","))
        if claim not in self.data:
            if pod["metadata"]["annotations"][names.ETCD_START] == "new" and not self.members:
                for url in urls.values():
                    self._list(url)
            own = next((each for each in self.members.values() if urls[name] in each.peer_urls), None)
            if own is None or own.name:
                self.violations.append(f"{name} started without the data that it had")
                return
            self.data[claim] = own.id
        own = self.members[self.data[claim]]
        self.members[own.id] = Member(own.id, name, own.peer_urls)
        self.running[name] = own.id

    def stop(self, pod: str) -> None:
        self.running.pop(pod, None)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _list(self, peer_url: str) -> None:
        number = next(self._ids)
        self.members[number] = Member(number, "", (peer_url,))

    def _serving(self) -> list[int]:
        return [number for pod, number in self.running.items() if number in self.members and pod not in self.silent]

    def _has_majority(self) -> bool:
        return len(self._serving()) > len(self.members) // 2

    def _needs_majority(self) -> None:
        if not self._has_majority():
            self.violations.append("the list of members would be changed without a majority")
            raise EtcdError("no majority")

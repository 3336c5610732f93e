"""BookieJobs on a fake cluster: what people do to them, passes over them, what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bookie_operator.api.kinds import BOOKIE_JOB, CRON_JOB, EVENT, JOB
from bookie_operator.reconcile.job_passing import run_job_pass
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE, FakeCluster
from tests.support.fake_kubernetes.objects import Object


class FakeJobs:
    def __init__(self, fake: FakeCluster, name: str = "weekly") -> None:
        self.fake = fake
        self.name = name

    def apply(self, **changes: Any) -> Object:
        """The BookieJob with this spec, beside its cluster and kind."""
        spec = {"clusterRef": {"name": NAME}, "kind": "audit", **changes}
        if self.fake.store.find(BOOKIE_JOB, NAMESPACE, self.name) is None:
            return self.fake.store.create(BOOKIE_JOB, NAMESPACE, {"metadata": {"name": self.name}, "spec": spec})
        return self.fake.store.patch(BOOKIE_JOB, NAMESPACE, self.name, {"spec": spec})

    def delete(self) -> None:
        self.fake.store.delete(BOOKIE_JOB, NAMESPACE, self.name)

    def ends(self, code: int, message: str) -> None:
        """So end its runs, also those that go on."""
        self.fake.controllers.ends[self.name] = (code, message)
        self.fake.run_controllers()

    def fire(self) -> str:
        """The schedule is due; the name of the Job."""
        return self.fake.controllers.fire(NAMESPACE, f"{self.name}-job")

    async def one_pass(self, operator: int = 0) -> float | None:
        """A pass, then what the controllers make of it; the time goes on by what the pass asked for."""
        seconds = await run_job_pass(self.fake.operators[operator], self.name, NAMESPACE)
        self.fake.time += max(seconds or 0.0, 0.05)
        self.fake.run_controllers()
        return seconds

    async def until(self, reached: Callable[[], bool], limit: int = 50) -> None:
        for _ in range(limit):
            if reached():
                return
            await self.one_pass()
        raise AssertionError(f"not reached in {limit} passes: {self.status}")

    @property
    def status(self) -> Object:
        return dict(self.fake.store.get(BOOKIE_JOB, NAMESPACE, self.name).get("status") or {})

    @property
    def phase(self) -> str:
        return str(self.status.get("phase", ""))

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason."""
        found = next((each for each in self.status.get("conditions", ()) if each["type"] == kind), {})
        return str(found.get("status", "")), str(found.get("reason", ""))

    def jobs(self) -> list[str]:
        """Of Kubernetes, those of BookieJobs."""
        labels = {"podkeeper.dev/job": self.name}
        return [each["metadata"]["name"] for each in self.fake.store.children(JOB, NAMESPACE, labels)]

    def cron_job(self) -> Object | None:
        return self.fake.store.find(CRON_JOB, NAMESPACE, f"{self.name}-job")

    def events(self) -> list[str]:
        """Reasons of those about it."""
        found = self.fake.store.list(EVENT, NAMESPACE)
        return [each["reason"] for each in found if each["regarding"]["kind"] == BOOKIE_JOB.kind]

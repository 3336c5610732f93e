"""Every call of the API server, and how each may end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import urllib3
from kubernetes import client

from bookie_operator.api import errors
from bookie_operator.api.kinds import (
    BUDGET,
    CLAIM,
    CONFIG_MAP,
    POD,
    SERVICE,
    STATEFUL_SET,
    VOLUME_ATTRIBUTES_CLASS,
    resource_of,
)
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.api.transport import Request, Transport, judged
from tests.support.fake_kubernetes.faults import Fault
from tests.support.fake_kubernetes.serving import kubernetes_alone

NAMESPACE = "here"


def config_map(name: str = "c", **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": "x"}},
        "data": data,
    }


def stateful_set(replicas: int) -> dict[str, Any]:
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "x"}}, "template": {"spec": {}}}
    metadata = {"name": "s", "namespace": NAMESPACE}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("content", [b" ", b"<html>", b"\xff", b"[" * 100_000])
def test_an_answer_that_is_no_json_is_none(content: bytes) -> None:
    request = Request("GET", "/api/v1/pods", {})
    with pytest.raises(errors.Unreachable):
        judged(request, urllib3.HTTPResponse(content, status=200))
    with pytest.raises(errors.Forbidden):
        judged(request, urllib3.HTTPResponse(content, status=403))


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, errors.Invalid),
        (401, errors.Forbidden),
        (403, errors.Forbidden),
        (404, errors.Absent),
        (405, errors.Invalid),
        (409, errors.Conflict),
        (410, errors.Expired),
        (422, errors.Invalid),
        (429, errors.TooManyRequests),
        (500, errors.Unreachable),
        (503, errors.Unreachable),
    ],
)
async def test_a_status_is_a_type(status: int, expected: type[Exception]) -> None:
    async with kubernetes_alone() as (kubernetes, server):
        server.faults.append(Fault("GET .*configmaps/c", status))
        with pytest.raises(expected, match=r"GET /api/v1/namespaces/here/configmaps/c: \d+: fault") as raised:
            await kubernetes.get(CONFIG_MAP, NAMESPACE, "c")
        assert type(raised.value) is expected


async def test_no_answer_in_time_is_unreachable() -> None:
    async with kubernetes_alone(timeout_s=0.1) as (kubernetes, server):
        server.faults.append(Fault("GET", delay_s=0.5))
        with pytest.raises(errors.Unreachable, match="ReadTimeout"):
            await kubernetes.get(CONFIG_MAP, NAMESPACE, "c")


async def test_nobody_there_is_unreachable() -> None:
    kubernetes = Kubernetes(Transport(client.Configuration(host="http://127.0.0.1:1")))
    with pytest.raises(errors.Unreachable):
        await kubernetes.find(CONFIG_MAP, NAMESPACE, "c")
    await kubernetes.close()


async def test_a_read_over_a_broken_connection_is_made_once_more_and_a_write_is_not() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        server.faults.append(Fault("GET", breaks=True))
        assert await kubernetes.find(CONFIG_MAP, NAMESPACE, "c") is None
        server.faults.append(Fault("GET", breaks=True, times=2))
        with pytest.raises(errors.Unreachable):
            await kubernetes.find(CONFIG_MAP, NAMESPACE, "c")
        server.faults.append(Fault("POST", breaks=True))
        with pytest.raises(errors.Unreachable):
            await kubernetes.create(config_map())


async def test_absence_is_an_answer_and_a_fault_is_none() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        assert await kubernetes.find(CONFIG_MAP, NAMESPACE, "c") is None
        server.faults.append(Fault("GET", 500))
        with pytest.raises(errors.Unreachable):
            await kubernetes.find(CONFIG_MAP, NAMESPACE, "c")


async def test_a_token_goes_with_each_request() -> None:
    async with kubernetes_alone() as (_, server):
        configuration = server.configuration()
        configuration.api_key = {"authorization": "secret"}
        configuration.api_key_prefix = {"authorization": "Bearer"}
        settings = configuration.auth_settings()
        assert settings["BearerToken"]["value"] == "Bearer secret"
        kubernetes = Kubernetes(Transport(configuration))
        assert await kubernetes.list(CONFIG_MAP, NAMESPACE) == []
        await kubernetes.close()


async def test_lists_have_all_pages_and_the_labels_that_were_asked_for() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        server.page = 2
        for number in range(5):
            await kubernetes.create(config_map(f"c{number}"))
        assert [each["metadata"]["name"] for each in await kubernetes.list(CONFIG_MAP, NAMESPACE, {"app": "x"})] == [
            f"c{number}" for number in range(5)
        ]
        assert await kubernetes.list(CONFIG_MAP, NAMESPACE, {"app": "y"}) == []
        assert await kubernetes.list(CONFIG_MAP, "elsewhere") == []
        named = await kubernetes.list(CONFIG_MAP, NAMESPACE, fields="metadata.name=c3")
        assert [each["metadata"]["name"] for each in named] == ["c3"]


async def test_a_list_that_expired_between_its_pages_is_read_anew() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        server.page = 2
        for number in range(3):
            await kubernetes.create(config_map(f"c{number}"))
        server.faults.append(Fault("GET .*configmaps$", 410, skip=1))
        assert len(await kubernetes.list(CONFIG_MAP, NAMESPACE)) == 3


async def test_metadata_alone_can_be_listed() -> None:
    async with kubernetes_alone() as (kubernetes, _):
        await kubernetes.create(config_map("c", key="value"))
        (found,) = await kubernetes.list(CONFIG_MAP, NAMESPACE, metadata_only=True)
        assert found["metadata"]["name"] == "c"
        assert "data" not in found


async def test_what_is_no_longer_applied_goes_and_what_others_own_stays() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        await kubernetes.apply(config_map(a="1", b="2"))
        server.store.patch(CONFIG_MAP, NAMESPACE, "c", {"data": {"theirs": "x"}})
        await kubernetes.apply(config_map(a="3"))
        assert server.store.get(CONFIG_MAP, NAMESPACE, "c")["data"] == {"a": "3", "theirs": "x"}
        version = server.store.version
        await kubernetes.apply(config_map(a="3"))
        assert server.store.version == version
        await kubernetes.apply(config_map(a="4"), dry_run=True)
        assert server.store.version == version


async def test_a_resource_version_that_is_no_more_is_a_conflict() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        first = await kubernetes.create(config_map(a="1"))
        await kubernetes.apply(config_map(a="2"))
        stale = config_map(a="3")
        stale["metadata"]["resourceVersion"] = first["metadata"]["resourceVersion"]
        for call in (kubernetes.apply(stale), kubernetes.replace(stale)):
            with pytest.raises(errors.Conflict):
                await call
        patch = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}, "data": {"a": "3"}}
        with pytest.raises(errors.Conflict):
            await kubernetes.merge(CONFIG_MAP, NAMESPACE, "c", patch)
        with pytest.raises(errors.Conflict):
            await kubernetes.create(config_map())
        assert server.store.get(CONFIG_MAP, NAMESPACE, "c")["data"] == {"a": "2"}


async def test_a_status_is_applied_apart() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        await kubernetes.create(stateful_set(1))
        metadata = {"name": "s", "namespace": NAMESPACE}
        body = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "status": {"a": 1, "b": 2}}
        await kubernetes.apply_status(body)
        assert not await kubernetes.apply_status({**body, "status": {"b": 2}})
        assert server.store.get(STATEFUL_SET, NAMESPACE, "s")["status"] == {"b": 2}
        assert server.store.get(STATEFUL_SET, NAMESPACE, "s")["spec"]["replicas"] == 1


async def test_only_the_object_that_was_meant_is_deleted_or_changed() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        made = await kubernetes.create(config_map(a="1"))
        with pytest.raises(errors.Conflict):
            await kubernetes.delete(CONFIG_MAP, NAMESPACE, "c", uid="another")
        with pytest.raises(errors.Absent):
            await kubernetes.merge_exactly(CONFIG_MAP, NAMESPACE, "c", "another", {"data": {"a": "2"}})
        await kubernetes.merge_exactly(CONFIG_MAP, NAMESPACE, "c", made["metadata"]["uid"], {"data": {"a": "2"}})
        assert server.store.get(CONFIG_MAP, NAMESPACE, "c")["data"] == {"a": "2"}
        await kubernetes.delete(CONFIG_MAP, NAMESPACE, "c", uid=made["metadata"]["uid"])
        with pytest.raises(errors.Absent):
            await kubernetes.delete(CONFIG_MAP, NAMESPACE, "c", uid=made["metadata"]["uid"])


async def test_an_orphan_stays_when_its_owner_goes() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        for propagation, left in (("Orphan", 1), ("Background", 0)):
            owner = await kubernetes.create(stateful_set(1))
            reference = {"uid": owner["metadata"]["uid"], "name": "s", "kind": "StatefulSet", "apiVersion": "apps/v1"}
            server.store.create(POD, NAMESPACE, {"metadata": {"name": "s-0", "ownerReferences": [reference]}})
            await kubernetes.delete(STATEFUL_SET, NAMESPACE, "s", uid=owner["metadata"]["uid"], propagation=propagation)
            pods = server.store.list(POD, NAMESPACE)
            assert len(pods) == left
            if pods:
                assert not pods[0]["metadata"].get("ownerReferences")
                server.store.delete(POD, NAMESPACE, "s-0")


async def test_scaling_is_for_what_was_seen() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        seen = await kubernetes.create(stateful_set(3))
        await kubernetes.scale(NAMESPACE, "s", 4, seen["metadata"]["resourceVersion"])
        assert server.store.get(STATEFUL_SET, NAMESPACE, "s")["spec"]["replicas"] == 4
        with pytest.raises(errors.Conflict):
            await kubernetes.scale(NAMESPACE, "s", 2, seen["metadata"]["resourceVersion"])


async def test_a_budget_refuses_an_eviction() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        await kubernetes.create(stateful_set(1))
        server.store.create(
            BUDGET,
            NAMESPACE,
            {"metadata": {"name": "b"}, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "x"}}}},
        )
        pod = server.store.create(POD, NAMESPACE, {"metadata": {"name": "s-0", "labels": {"app": "x"}}})
        with pytest.raises(errors.TooManyRequests) as refused:
            await kubernetes.evict(NAMESPACE, "s-0", pod["metadata"]["uid"])
        assert "disruption budget" in refused.value.message
        assert refused.value.retry_after_s == 1.0
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        server.store.replace(POD, NAMESPACE, "s-0", {"metadata": {}, "status": ready}, "status")
        with pytest.raises(errors.Conflict):
            await kubernetes.evict(NAMESPACE, "s-0", "another")
        await kubernetes.evict(NAMESPACE, "s-0", pod["metadata"]["uid"])
        assert server.store.find(POD, NAMESPACE, "s-0") is None


async def test_requests_beyond_the_bound_wait_their_turn() -> None:
    async with kubernetes_alone() as (_, server):
        kubernetes = Kubernetes(Transport(server.configuration(), workers=2))
        found = await asyncio.gather(*(kubernetes.find(CONFIG_MAP, NAMESPACE, str(each)) for each in range(20)))
        assert found == [None] * 20
        await kubernetes.close()


async def test_api_groups() -> None:
    async with kubernetes_alone() as (kubernetes, _):
        assert {"apps", "policy", "podkeeper.dev"} <= await kubernetes.groups()


async def test_kinds_of_the_prometheus_operator_are_told_apart() -> None:
    """Some of its definitions may be installed without the others."""
    async with kubernetes_alone() as (kubernetes, _):
        found = await kubernetes.groups()
        assert {"monitoring.coreos.com", "monitoring.coreos.com/PrometheusRule"} <= found
        assert "monitoring.coreos.com/Prometheus" not in found
        assert not any(each.startswith("apps/") for each in found)


async def test_kinds_that_came_late_to_the_group_of_storage_are_told_apart() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        assert VOLUME_ATTRIBUTES_CLASS.group_kind in await kubernetes.groups()
        server.unknown.add(VOLUME_ATTRIBUTES_CLASS.plural)
        assert VOLUME_ATTRIBUTES_CLASS.group_kind not in await kubernetes.groups()


def test_paths() -> None:
    assert CLAIM.path("a", "b") == "/api/v1/namespaces/a/persistentvolumeclaims/b"
    assert SERVICE.path() == "/api/v1/services"
    assert STATEFUL_SET.path("a", "b/c", "scale") == "/apis/apps/v1/namespaces/a/statefulsets/b%2Fc/scale"
    assert resource_of({"apiVersion": "apps/v1", "kind": "StatefulSet"}) is STATEFUL_SET
    with pytest.raises(KeyError):
        resource_of({"apiVersion": "v2", "kind": "Pod"})

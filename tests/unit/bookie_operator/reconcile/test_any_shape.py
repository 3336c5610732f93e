"""Specs and statuses of any shape that the schema lets through, and beyond: a pass never fails over one, it tells what
it cannot understand, bookies stay as they are, and a deletion ends."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from bookie_operator.api.kinds import CLUSTER, STATEFUL_SET
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE, SPEC, FakeCluster, settled_cluster
from tests.support.fake_kubernetes.statuses import judge_status

SEEDS: Final = 2
SHAPES: Final = 12
OPEN: Final = "x-kubernetes-preserve-unknown-fields"
KEYS: Final = (
    *("limits", "requests", "memory", "cpu", "name", "value", "valueFrom", "topologyKey", "labelSelector", "mountPath"),
    *("podAntiAffinity", "nodeAffinity", "podAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "weight"),
    *("preferredDuringSchedulingIgnoredDuringExecution", "configMap", "secret", "projected", "sources", "emptyDir"),
    *("image", "securityContext", "restartPolicy", "kind", "group", "podSelector", "items", "envFrom"),
)
PLAIN: Final[tuple[Any, ...]] = (None, True, 7, -1, 1.5, "", "4Gi", "x" * 300, "a b\n", [], {}, [None], ["a"], "1e400")


def anything(draw: random.Random, depth: int = 3) -> Any:
    match draw.randrange(4) if depth else 0:
        case 0 | 1:
            return copy.deepcopy(draw.choice(PLAIN))
        case 2:
            return [anything(draw, depth - 1) for _ in range(draw.randrange(3))]
    return {draw.choice(KEYS): anything(draw, depth - 1) for _ in range(draw.randrange(1, 3))}


def places(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Paths of a schema, with what stands there: `open` (whatever people write), `opens` (a list of it), or a type."""
    if schema.get(OPEN):
        yield path, "open"
    elif schema.get("items", {}).get(OPEN):
        yield path, "opens"
    else:
        yield path, str(schema.get("type", ""))
        for name, part in schema.get("properties", {}).items():
            yield from places(part, (*path, name))


def spec_and_status() -> tuple[dict[str, Any], dict[str, Any]]:
    text = (Path(__file__).parents[4] / "crds" / "bookieclusters.podkeeper.dev.yaml").read_text(encoding="utf-8")
    (version,) = yaml.load(text, yaml.CSafeLoader)["spec"]["versions"]
    parts = version["schema"]["openAPIV3Schema"]["properties"]
    return parts["spec"], parts["status"]


def put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        below = tree.setdefault(name, {})
        if not isinstance(below, dict):
            return
        tree = below
    tree[path[-1]] = value


def shaped(draw: random.Random, schema: dict[str, Any]) -> dict[str, Any]:
    """What the schema of this release or of a newer one lets through."""
    spec = copy.deepcopy(SPEC)
    found = list(places(schema))
    free = [(path, kind) for path, kind in found if kind in ("open", "opens")]
    for path, kind in draw.sample(free, draw.randrange(1, 4)):
        value = {draw.choice(KEYS): anything(draw) for _ in range(draw.randrange(1, 3))}
        put(spec, path, [value] if kind == "opens" else value)
    if draw.random() < 0.3:
        put(spec, (*draw.choice([path for path, kind in found if kind == "object"]), "newer"), anything(draw))
    if draw.random() < 0.3:
        path, _ = draw.choice([one for one in found if one[0]])
        put(spec, path, anything(draw))
    return spec


def stored(fake: FakeCluster, **parts: Any) -> None:
    """As it is, by somebody whose definition has no objection."""
    live = copy.deepcopy(fake.resource)
    del live["metadata"]["resourceVersion"]
    fake.store.replace(CLUSTER, NAMESPACE, NAME, {**live, **parts}, "status" if "status" in parts else "")


async def judged(fake: FakeCluster) -> None:
    """Some passes: what is told is about what there is, and every bookie is kept."""
    for _ in range(2):
        await fake.one_pass()
    told = [each for each in fake.status["conditions"] if each["type"] in ("SpecValid", "Stalled")]
    assert told, fake.status
    assert fake.status["observedGeneration"] == fake.resource["metadata"]["generation"]
    assert fake.store.get(STATEFUL_SET, NAMESPACE, "demo-bookie")["spec"]["replicas"] == 3
    assert len(fake.bookkeeper.cookies) == 3


async def ended(fake: FakeCluster) -> None:
    fake.store.delete(CLUSTER, NAMESPACE, NAME)
    await fake.until(lambda: fake.store.find(CLUSTER, NAMESPACE, NAME) is None, limit=120)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_any_spec(seed: int) -> None:
    draw, (schema, _) = random.Random(seed), spec_and_status()
    async with settled_cluster() as fake:
        for _ in range(SHAPES):
            stored(fake, spec=shaped(draw, schema))
            await judged(fake)
        await ended(fake)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_any_status(seed: int) -> None:
    draw, (_, schema) = random.Random(seed), spec_and_status()
    found = [path for path, _ in places(schema) if path]
    async with settled_cluster() as fake:
        fake.store.admission.remove(judge_status)
        good = copy.deepcopy(fake.status)
        for _ in range(SHAPES):
            strange = copy.deepcopy(good)
            put(strange, draw.choice(found), anything(draw))
            put(strange, ("newer",), anything(draw))
            stored(fake, status=strange)
            for _ in range(2):
                await fake.one_pass()
            assert fake.condition("Ready"), strange
            assert len(fake.pods()) == 3
            stored(fake, status=good)
        await ended(fake)

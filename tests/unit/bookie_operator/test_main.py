"""The command: its options, and where they come from."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner
from kubernetes import client

from bookie_operator.api.errors import Forbidden
from bookie_operator.api.kinds import CLUSTER
from bookie_operator.main import main, remaining, repository, watched_namespaces
from tests.support.fake_kubernetes.serving import kubernetes_alone


@pytest.fixture(autouse=True)
def own_depth() -> Iterator[None]:
    """Of the process of the tests."""
    before = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(before)


def test_resources_are_read_as_deep_as_an_api_server_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever thread, as kopf does: one that cannot be read is missed with all that come behind it."""
    depth, read = 10_000, list[str]()

    async def run_operator(*_: object, **__: object) -> None:
        text = '{"a":' * depth + "1" + "}" * depth
        await asyncio.to_thread(lambda: read.append(json.dumps(json.loads(text), separators=(",", ":"))))
        assert read == [text]

    monkeypatch.setattr("bookie_operator.main.configure", lambda log_format, level: None)
    monkeypatch.setattr("bookie_operator.api.transport.load_configuration", client.Configuration)
    monkeypatch.setattr("bookie_operator.running.run_operator", run_operator)
    answer = CliRunner().invoke(main, ["run", "--namespace", "here"])
    assert (answer.exit_code, len(read)) == (0, 1), answer.exception


def test_version() -> None:
    answer = CliRunner().invoke(main, ["--version"])
    assert answer.exit_code == 0
    assert answer.output.startswith("bookie-operator 0.")


def test_without_kubernetes_it_ends_with_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr("bookie_operator.main.configure", lambda log_format, level: None)
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none")
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", f"{tmp_path}/none")
    answer = CliRunner().invoke(main, ["run", "--namespace", "here"])
    assert answer.exit_code == 1
    assert "no usable KUBECONFIG" in answer.output
    assert len(answer.output.splitlines()) == 1


def test_namespaces_come_from_options_then_the_environment_then_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PODKEEPER_NAMESPACES", raising=False)
    assert watched_namespaces(("a", "b"), "own", all_namespaces=False) == ("a", "b")
    assert watched_namespaces((), "own", all_namespaces=False) == ("own",)
    assert watched_namespaces((), "own", all_namespaces=True) == ()
    monkeypatch.setenv("PODKEEPER_NAMESPACES", "c, d,")
    assert watched_namespaces((), "own", all_namespaces=False) == ("c", "d")
    with pytest.raises(click.UsageError):
        watched_namespaces(("a",), "own", all_namespaces=True)


def test_outside_of_kubernetes_it_asks_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PODKEEPER_NAMESPACES", raising=False)
    with pytest.raises(click.UsageError, match="--namespace"):
        watched_namespaces((), "", all_namespaces=False)


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("podkeeper", "podkeeper"),
        ("podkeeper:0.1.0", "podkeeper"),
        ("registry:5000/a/podkeeper", "registry:5000/a/podkeeper"),
        ("registry:5000/a/podkeeper:0.1.0", "registry:5000/a/podkeeper"),
        ("podkeeper@sha256:abc", "podkeeper"),
    ],
)
def test_the_images_tag_is_that_of_each_cluster(image: str, name: str) -> None:
    assert repository(image) == name


async def test_what_remains_before_an_operator_is_uninstalled() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        assert await remaining(kubernetes, ()) == []
        for namespace in ("a", "b"):
            server.store.create(CLUSTER, namespace, {"metadata": {"name": "events"}, "spec": {}})
        assert await remaining(kubernetes, ("b", "c")) == ["  kubectl -n b delete bkc events"]
        assert len(await remaining(kubernetes, ())) == 2
        server.unknown.add("bookieclusters")
        assert await remaining(kubernetes, ()) == []


def test_what_remains_fails_and_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(kubernetes: object, namespaces: tuple[str, ...]) -> list[str]:
        if namespaces == ("dark",):
            raise Forbidden("bookieclusters may not be listed")
        return [f"  kubectl -n {namespaces[0]} delete bkc events"] if namespaces == ("full",) else []

    monkeypatch.setattr("bookie_operator.main.remaining", found)
    monkeypatch.setattr(
        "bookie_operator.api.transport.load_configuration", lambda: client.Configuration(host="http://127.0.0.1:1")
    )
    answer = CliRunner().invoke(main, ["remains", "--namespace", "full"])
    assert answer.exit_code == 1
    assert "kubectl -n full delete bkc events" in answer.output
    assert "--no-hooks" in answer.output
    assert CliRunner().invoke(main, ["remains", "--namespace", "empty"]).exit_code == 0
    unreachable = CliRunner().invoke(main, ["remains", "--namespace", "dark"])
    assert unreachable.exit_code == 1
    assert "--no-hooks" in unreachable.output

"""What the ring takes from its environment.

    KUBECONFIG                  the Kubernetes to test on; required
    PODKEEPER_E2E_IMAGE         image of bookies and operator, present on every node (podkeeper:e2e)
    PODKEEPER_E2E_NEXT_IMAGE    another tag of it, to upgrade to (podkeeper:e2e-next)
    PODKEEPER_E2E_SPARK_IMAGE   the image with Spark (that of PODKEEPER_E2E_IMAGE with -spark after its tag)
    PODKEEPER_E2E_PULSAR_IMAGE  the image for Pulsar's chart (that of PODKEEPER_E2E_IMAGE with -pulsar after its tag)
    PODKEEPER_E2E_JAVA_IMAGE    Java, the classes of the interop ring, and Apache's bookie (podkeeper-java:e2e)
    PODKEEPER_E2E_ETCD_IMAGE    an image with `etcd` on its PATH (podkeeper-etcd:e2e)
    PODKEEPER_E2E_NAMESPACE     namespace of everything (podkeeper-e2e); it is made, and deleted with all that is in it
    PODKEEPER_E2E_HOST          address of this machine that pods reach (198.18.0.1): a ZooKeeper listens there
    PODKEEPER_CLUSTER           folder with the commands `node` and `disk`, which break nodes and disks of the cluster
    PODKEEPER_E2E_ARTIFACTS     where the state of failed tests is written (a temporary folder)
    PODKEEPER_E2E_LOCAL         anything: run the operator of this work tree here, instead of installing its chart
    PODKEEPER_E2E_PATIENCE      a factor of every time-out (1), for a machine that does other things meanwhile
    PODKEEPER_E2E_KEEP          anything: leave the namespace as the last test left it

Threads: values, for any thread.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Environment:
    kubeconfig: str
    namespace: str
    image: str
    next_image: str
    spark_image: str
    pulsar_image: str
    java_image: str
    etcd_image: str
    host: str
    faults: str
    """Folder of the scripts; empty: there are none."""
    artifacts: str
    keep: bool
    local: bool


def environment() -> Environment:
    """Fails the test that asks for it, with one line, when there is no cluster."""
    kubeconfig = os.environ.get("KUBECONFIG", "")
    if not kubeconfig or not os.path.exists(kubeconfig):
        pytest.fail(f"the e2e ring needs a Kubernetes: set KUBECONFIG (now: {kubeconfig or 'unset'})", pytrace=False)
    image = os.environ.get("PODKEEPER_E2E_IMAGE", "podkeeper:e2e")
    return Environment(
        kubeconfig=kubeconfig,
        namespace=os.environ.get("PODKEEPER_E2E_NAMESPACE", "podkeeper-e2e"),
        image=image,
        next_image=os.environ.get("PODKEEPER_E2E_NEXT_IMAGE", "podkeeper:e2e-next"),
        spark_image=os.environ.get("PODKEEPER_E2E_SPARK_IMAGE", f"{image}-spark"),
        pulsar_image=os.environ.get("PODKEEPER_E2E_PULSAR_IMAGE", f"{image}-pulsar"),
        java_image=os.environ.get("PODKEEPER_E2E_JAVA_IMAGE", "podkeeper-java:e2e"),
        etcd_image=os.environ.get("PODKEEPER_E2E_ETCD_IMAGE", "podkeeper-etcd:e2e"),
        host=os.environ.get("PODKEEPER_E2E_HOST", "198.18.0.1"),
        faults=os.environ.get("PODKEEPER_CLUSTER", ""),
        artifacts=os.environ.get("PODKEEPER_E2E_ARTIFACTS", ""),
        keep=bool(os.environ.get("PODKEEPER_E2E_KEEP")),
        local=bool(os.environ.get("PODKEEPER_E2E_LOCAL")),
    )

"""The agent of the interop ring in a pod: the stock Java client, driven over `kubectl exec`.

The image has Java on its PATH, and the ring's classes and jars below /opt/client (`tests/e2e/java/Dockerfile`).

Threads: that of the test.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.interop.java_client import JavaClient

CLASS_PATH: Final = "/opt/client/classes:/opt/client/jars/*"


@contextmanager
def java_client_in(kubeconfig: str, namespace: str, pod: str, metadata_uri: str, log: Path) -> Iterator[JavaClient]:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.fail("the Java client is driven by kubectl, which is not on the PATH", pytrace=False)
    launcher = [kubectl, "--kubeconfig", kubeconfig, "--namespace", namespace, "exec", "-i", pod, "--", "java"]
    client = JavaClient(CLASS_PATH, metadata_uri, log, launcher=launcher)
    try:
        yield client
    finally:
        client.stop()

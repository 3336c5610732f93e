"""The writer and reader that are under way all the time, from the tests' side.

    with Workload(kube, image, metadata_uri, node="node1") as workload:
        ...                          # break things
        workload.progress()          # it goes on, now
    # leaving stops it, and compares everything with what was acknowledged

Threads: that of the test.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from tests.e2e.support import manifests
from tests.e2e.support.kube import PATIENCE, Kube, pod_ready

_PROGRAM: Final = Path(__file__).with_name("workload_program.py")
_PORT: Final = 8080
_START_SECONDS: Final = 90.0
_PROGRESS_SECONDS: Final = 60.0
_VERIFY_SECONDS: Final = 600.0


class Workload:
    """A context manager. The pod runs on `node`, which nobody should break. `placement`: policy of its ledgers.
    `metadata_secrets`: Secrets with what opens its metadata service, and their keys."""

    def __init__(
        self,
        kube: Kube,
        image: str,
        metadata_uri: str,
        *,
        node: str,
        name: str = "workload",
        placement: str = "rack-aware",
        metadata_secrets: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._kube = kube
        self._image = image
        self._uri = metadata_uri
        self._node = node
        self._name = name
        self._placement = placement
        self._metadata_secrets = metadata_secrets
        self._began: float | None = None

    def __enter__(self) -> Workload:
        self._remove()
        self._kube.apply(manifests.config_map(self._name, {"workload.py": _PROGRAM.read_text(encoding="utf-8")}))
        self._kube.apply(
            manifests.pod(
                self._name,
                self._image,
                ["python3", "/files/workload.py"],
                env={"METADATA_URI": self._uri, "PORT": str(_PORT), "PLACEMENT": self._placement},
                files=self._name,
                node=self._node,
                probe=("/state", _PORT),
                metadata_secrets=self._metadata_secrets,
            )
        )
        self._kube.wait_for(
            "Pod",
            lambda pods: self._name in pods and pod_ready(pods[self._name]),
            _START_SECONDS,
            "the workload's pod",
            name=self._name,
        )
        try:
            self.progress()
        except BaseException:
            self.tell()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.verify()
            self._remove()
        else:
            self.tell()

    def state(self, appended: int = 0, read: int = 0) -> dict[str, Any]:
        """Of writer and reader, once there are so many entries, or after 20 s. AssertionError for a loss, and if it is
        not the one that was started."""
        state = self._ask(f"/state/{appended}/{read}")
        assert self._began in (None, state["began"]), "the workload was started anew: its record is lost"
        self._began = state["began"]
        assert not state["losses"], f"acknowledged and not there: {state['losses'][:10]}"
        assert not state["dead"], f"the workload broke: {state['dead']}"
        return state

    def progress(self, entries: int = 100, seconds: float = _PROGRESS_SECONDS) -> dict[str, Any]:
        """So many further entries are acknowledged and some are read; AssertionError after `seconds`."""
        seconds *= PATIENCE
        end = time.monotonic() + seconds
        state = self.state()
        appended, read = state["appended"] + entries, state["read"] + 1
        while state["appended"] < appended or state["read"] < read:
            assert time.monotonic() < end, f"no {entries} entries within {seconds:g} s: {state['faultLines'][-10:]}"
            state = self.state(appended=appended, read=read)
        return state

    def verify(self, seconds: float = _VERIFY_SECONDS) -> dict[str, Any]:
        """Stop, then read every ledger and each of its copies. What is a copy short is looked at again until
        `seconds` have passed: auto-recovery may be at it, and is asked to look for what writers left out."""
        self.state()
        assert self._ask("/stop", "POST")["stopped"], "writers or readers hang"
        end = time.monotonic() + seconds
        while True:
            verdict = self._verdict(end)
            assert not verdict["losses"], f"acknowledged and not there: {verdict['losses'][:10]}"
            open_points = {name: verdict[name][:5] for name in ("unread", "short", "untold") if verdict[name]}
            if not open_points:
                assert verdict["copies"] > verdict["entries"] > 0, verdict
                return verdict
            self._ask("/check", "POST")
            assert time.monotonic() < end, f"not fully replicated after {seconds:g} s: {open_points}"

    def tell(self) -> None:
        """Print what it did, for the report of a failed test."""
        with contextlib.suppress(ApiException, HTTPError):
            print("workload:", self._ask("/state"))
        with contextlib.suppress(ApiException, HTTPError):
            print("workload's log:", self._kube.logs(self._name, lines=50))

    def _verdict(self, end: float) -> dict[str, Any]:
        self._ask("/verify", "POST")
        while not (verdict := self._ask("/verdict")):
            assert time.monotonic() < end + _VERIFY_SECONDS, "the verification hangs"
        return dict(verdict)

    def _ask(self, path: str, method: str = "GET") -> Any:
        return self._kube.ask_pod(self._name, _PORT, path, method=method)

    def _remove(self) -> None:
        if self._kube.delete("Pod", self._name, grace=0):
            self._kube.wait_gone("Pod", self._name, 60)

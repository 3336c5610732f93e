"""The certificate of a cluster's admin API: the operator's, made and renewed here, or one of the user's or of
cert-manager, which is judged; and that of its embedded metadata service, which is always the operator's.

    CLUSTER-admin-ca     tls.crt, tls.key            the authority: nobody mounts it
    CLUSTER-admin-tls    tls.crt, tls.key, ca.crt    what pods mount, and read again when it changes
    CLUSTER-metadata-tls                             the same of the metadata service; others mount ca.crt alone

An authority that follows another one has its key, so what either signed is good with both. One that was lost is
followed by a stranger: then `ca.crt` has the last one too, until the pods serve what the new one signed.

Invariants
- A Secret of that name that is somebody else's is never written; one of an earlier cluster of the name is waited for.
- What there is is replaced only when it is to be renewed, lacks something, or does not have the names that it should.
- A renewal that fails leaves what there is in use, and is tried again with the next pass.

Certificates are made and judged by the `openssl` of the image: no library of ours makes any. No configuration of the
machine counts, each call brings its own; keys are in files of a directory that nobody else may read, for as long as one
call lasts.

Threads: one event loop; certificates are made in threads, in calls that block for some ten milliseconds, and for
`_TIMEOUT_S` at most.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from bookie_operator.api.errors import Conflict
from bookie_operator.api.kinds import SECRET, KubernetesObject
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.builders import naming
from bookie_operator.builders.common import content_hash, is_outlived, is_own, manifest, owner_of
from bookie_operator.builders.container import admin_tls_secret
from bookie_operator.builders.metadata_uri import is_protected, metadata_host
from bookie_operator.builders.network import dns_names
from bookie_operator.builders.secrets import secret_data, secret_texts
from bookie_operator.crds import names
from bookie_operator.executor.workloads import apply_own
from bookie_operator.world.model import ClusterView

PROGRAM: Final = "openssl"
_TIMEOUT_S: Final = 30.0
_CURVE: Final = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
_AUTHORITY: Final = """\
basicConstraints=critical,CA:TRUE,pathlen:0
keyUsage=critical,keyCertSign,cRLSign
subjectKeyIdentifier=hash
"""
_SERVER: Final = """\
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid:always
subjectAltName={names}
"""
_LONGEST_NAME: Final = 64
_REASONS: Final = {
    "hostname mismatch": "it does not name {host}: make one that does",
    "certificate has expired": "it has expired: renew it",
    "certificate is not yet valid": "it is not valid yet: look at the clocks",
}
_STRANGER: Final = "ca.crt has not the authority that signed it ({reason}): correct it"


class CertificateError(Exception):
    """It could not be made; the text says why."""


@dataclass(frozen=True)
class Pair:
    """PEM text."""

    certificate: str
    key: str


def make_authority(name: str, days: int, key: str = "") -> Pair:
    """Signs certificates of servers. `key`: of the one that it follows, so that what that one signed stays good.

    Raises CertificateError.
    """
    with _folder() as folder:
        _write_key(folder, key)
        _issue(folder, name, _AUTHORITY, days)
        return _pair(folder)


def make_certificate(authority: Pair, name: str, hosts: Sequence[str], days: int) -> Pair:
    """Make the certificate of a server that is called by any of `hosts`. Raises CertificateError."""
    with _folder() as folder:
        (folder / "authority.crt").write_text(authority.certificate)
        (folder / "authority.key").write_text(authority.key)
        _write_key(folder)
        names = ",".join(f"DNS:{host}" for host in hosts)
        signed = ("-CA", "authority.crt", "-CAkey", "authority.key")
        _issue(folder, name, _SERVER.format(names=names), days, *signed)
        return _pair(folder)


def fault_of(pair: Pair, authorities: str, host: str) -> str:
    """Why clients that trust `authorities` would not take the certificate for that of `host`; empty: they would.

    Raises CertificateError if nobody can tell.
    """
    with _folder() as folder:
        (folder / "own.crt").write_text(pair.certificate)
        (folder / "own.key").write_text(pair.key)
        (folder / "ca.crt").write_text(authorities)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / "own.crt", folder / "own.key", "")
        except ssl.SSLError:
            return "tls.crt and tls.key are no PEM files that belong together, or the key has a password: correct them"
        verify = ("verify", "-CAfile", "ca.crt", "-untrusted", "own.crt", "-purpose", "sslserver")
        done = _openssl(folder, *verify, "-verify_hostname", host, "own.crt")
        return "" if done.returncode == 0 else _reason(done.stderr + done.stdout, host)


def _reason(said: str, host: str) -> str:
    found = next((line.rpartition("lookup:")[2].strip() for line in said.splitlines() if "lookup:" in line), "")
    known = _REASONS.get(found)
    return known.format(host=host) if known else _STRANGER.format(reason=found or "it cannot be read")


def _issue(folder: Path, name: str, extensions: str, days: int, *signed: str) -> None:
    head = "[req]\ndistinguished_name=name\nprompt=no\nx509_extensions=extensions\n"
    (folder / "request").write_text(f"{head}[name]\nCN={name[:_LONGEST_NAME]}\n[extensions]\n{extensions}")
    own = ("-key", "own.key", "-config", "request", "-days", str(days), "-out", "own.crt")
    _run(folder, "req", "-x509", "-new", "-sha256", *own, *signed)


def _write_key(folder: Path, key: str = "") -> None:
    if key:
        (folder / "own.key").write_text(key)
    else:
        _run(folder, "genpkey", *_CURVE, "-out", "own.key")


def _pair(folder: Path) -> Pair:
    return Pair((folder / "own.crt").read_text(), (folder / "own.key").read_text())


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def _run(folder: Path, *arguments: str) -> None:
    done = _openssl(folder, *arguments)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise CertificateError(f"{PROGRAM} {arguments[0]}: {lines[0][:300] if lines else done.returncode}")


def _openssl(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    alone = {"PATH": os.environ.get("PATH", os.defpath), "OPENSSL_CONF": os.devnull}
    try:
        return subprocess.run(
            [PROGRAM, *arguments],
            cwd=folder,
            env=alone,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as exc:
        raise CertificateError(f"there is no {PROGRAM} in the operator's image") from exc
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise CertificateError(f"{PROGRAM} {arguments[0]}: {exc}") from exc


_log = structlog.get_logger(__name__)
_DAY_S: Final = 86_400.0
AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 365
_RENEWED_AFTER: Final = 2 / 3
"""Of its time: what is left is for clusters that are paused, and operators that are away."""
_JUDGED_S: Final = 600.0
"""How long a judgement of the user's certificate counts: it may expire meanwhile."""
_PART: Final = ("tls.crt", "tls.key", "ca.crt")
_END: Final = "-----END CERTIFICATE-----\n"
_AT: Final = "spec.tls.adminApi"


class AdminCertificates:
    """The admin certificates of all clusters of one operator."""

    def __init__(self) -> None:
        self._judged: dict[str, tuple[float, str]] = {}
        """By a hash of what was looked at: until when it counts, and the fault."""

    async def keep(self, kubernetes: Kubernetes, cluster: ClusterView, now: float) -> tuple[str, ...]:
        """Why pods cannot have it, as errors of `spec`; empty: they can. Raises KubernetesError; Conflict: it has to
        be looked at again soon."""
        if cluster.deleting:
            return ()
        return (*await self._of_admin(kubernetes, cluster, now), *await self._of_metadata(kubernetes, cluster, now))

    async def _of_metadata(self, kubernetes: Kubernetes, cluster: ClusterView, now: float) -> tuple[str, ...]:
        if not is_protected(cluster):
            return ()
        name, remedy = naming.metadata_certificate(cluster.name), "give what is there another name"
        return await _keep_own(kubernetes, cluster, name, [metadata_host(cluster)], now, "spec.metadataService", remedy)

    async def _of_admin(self, kubernetes: Kubernetes, cluster: ClusterView, now: float) -> tuple[str, ...]:
        wanted = cluster.spec.tls.admin_api
        if not wanted.enabled:
            return ()
        if wanted.secret_name is not None or wanted.issuer_ref is not None:
            by = "secretName" if wanted.secret_name is not None else "issuerRef"
            fault = await self._fault(kubernetes, cluster, now)
            return (f"{_AT}.{by}: {fault}",) if fault else ()
        name, remedy = naming.admin_certificate(cluster.name), "give secretName, or set enabled to false"
        return await _keep_own(kubernetes, cluster, name, dns_names(cluster), now, _AT, remedy)

    async def _fault(self, kubernetes: Kubernetes, cluster: ClusterView, now: float) -> str:
        """What is wrong with the Secret of the user or of cert-manager, with the remedy; empty: it is good, or
        cert-manager is to make it, for which the planner waits."""
        name, users = admin_tls_secret(cluster), cluster.spec.tls.admin_api.secret_name is not None
        texts = secret_texts(await kubernetes.find(SECRET, cluster.namespace, name))
        if texts is None:
            return f"there is no Secret {name}; make it, with {', '.join(_PART)}" if users else ""
        lacking = [key for key in _PART if not texts.get(key)]
        if lacking:
            remedy = (
                "add what is missing" if users else "name an issuer that tells its authority, such as one of kind CA"
            )
            return f"Secret {name} has no {', '.join(lacking)}; {remedy}"
        host = naming.admin_server_name(cluster.name, cluster.namespace)
        content = content_hash([host, *(texts[key] for key in _PART)], length=64)
        until, fault = self._judged.get(content, (0.0, ""))
        if now >= until:
            try:
                pair = Pair(texts["tls.crt"], texts["tls.key"])
                fault = await asyncio.to_thread(fault_of, pair, texts["ca.crt"], host)
            except CertificateError as exc:  # bookies judge it themselves
                _log.warning("a certificate was not looked at", cluster=cluster.name, secret=name, reason=str(exc))
                fault = ""
            self._judged = {key: each for key, each in self._judged.items() if each[0] > now}
            self._judged[content] = (now + _JUDGED_S, fault)
        return f"the certificate of Secret {name} is no good: {fault}" if fault else ""


async def _keep_own(
    kubernetes: Kubernetes, cluster: ClusterView, name: str, hosts: list[str], now: float, field: str, remedy: str
) -> tuple[str, ...]:
    """As `AdminCertificates.keep`, of one that is the operator's."""
    if cluster.paused:
        return ()
    found = await kubernetes.find(SECRET, cluster.namespace, name)
    authority = await kubernetes.find(SECRET, cluster.namespace, naming.admin_authority(cluster.name))
    for each in (found, authority):
        if each is not None and is_outlived(each, cluster):
            raise Conflict(f"Secret {each['metadata']['name']} of an earlier {cluster.name} is not gone yet")
        if each is not None and not is_own(each, cluster):
            whose = f"Secret {each['metadata']['name']} is not this cluster's own: {owner_of(each)}"
            return (f"{field}: {whose}; give it another name, or {remedy}",)
    if _is_good(found, _PART, now, ",".join(hosts)):
        return ()
    try:
        await _make(kubernetes, cluster, name, hosts, found, authority, now)
    except CertificateError as exc:
        if found is not None:
            _log.error("the certificate cannot be renewed", cluster=cluster.name, secret=name, reason=str(exc))
            return ()
        return (f"{field}: no certificate can be made: {exc}; {remedy}",)
    return ()


async def _make(
    kubernetes: Kubernetes,
    cluster: ClusterView,
    name: str,
    hosts: list[str],
    before: KubernetesObject | None,
    signed_by: KubernetesObject | None,
    now: float,
) -> None:
    authority = await _authority(kubernetes, cluster, signed_by, now)
    made = await asyncio.to_thread(make_certificate, authority, name, hosts, CERTIFICATE_DAYS)
    first, end, _ = (secret_texts(before) or {}).get("ca.crt", "").partition(_END)
    last = first + end if end else ""
    known = "" if authority.certificate in last else last
    content = {"tls.crt": made.certificate, "tls.key": made.key, "ca.crt": authority.certificate + known}
    about = {names.CERTIFICATE_FOR: ",".join(hosts)}
    await _write(kubernetes, cluster, name, content, CERTIFICATE_DAYS, now, about)
    _log.info("made a certificate", secret=name, cluster=cluster.name, namespace=cluster.namespace)


async def _authority(kubernetes: Kubernetes, cluster: ClusterView, found: KubernetesObject | None, now: float) -> Pair:
    name = naming.admin_authority(cluster.name)
    texts = secret_texts(found) or {}
    if _is_good(found, _PART[:2], now):
        return Pair(texts["tls.crt"], texts["tls.key"])
    title = f"admin API of {cluster.name}"
    made = await asyncio.to_thread(make_authority, title, AUTHORITY_DAYS, texts.get("tls.key", ""))
    content = {"tls.crt": made.certificate, "tls.key": made.key}
    await _write(kubernetes, cluster, name, content, AUTHORITY_DAYS, now, {})
    return made


def _is_good(found: KubernetesObject | None, part: tuple[str, ...], now: float, hosts: str = "") -> bool:
    texts = secret_texts(found) or {}
    about = (found or {}).get("metadata", {}).get("annotations") or {}
    try:
        renew_at = float(about.get(names.RENEW_AT, "0"))
    except ValueError:
        return False
    return all(texts.get(key) for key in part) and now < renew_at and about.get(names.CERTIFICATE_FOR, "") == hosts


async def _write(
    kubernetes: Kubernetes,
    cluster: ClusterView,
    name: str,
    content: dict[str, str],
    days: int,
    now: float,
    annotations: dict[str, str],
) -> None:
    about = {**annotations, names.RENEW_AT: f"{now + days * _DAY_S * _RENEWED_AFTER:.0f}"}
    secret = {"type": "kubernetes.io/tls", "data": secret_data(content)}
    made = manifest(cluster, "v1", "Secret", name, naming.BOOKIE, secret, annotations=about)
    await apply_own(kubernetes, cluster, made)

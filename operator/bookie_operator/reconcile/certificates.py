"""Certificates, made and judged by the `openssl` of the image: no library of ours makes any.

Invariants
- Keys are in files of a directory that nobody else may read, for as long as one call lasts.
- No configuration of the machine counts: each call brings its own.

Threads: any; calls block for some ten milliseconds, and for `_TIMEOUT_S` at most.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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

"""PEM certificates made by openssl: an authority, a bookie, a client, and somebody whom nobody knows."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory


@dataclass
class Certificates:
    """Everything in one folder; each openssl takes some hundredths of a second."""

    folder: Path

    def make_all(self) -> Certificates:
        """The same in every folder of a process."""
        for name, content in _all().items():
            (self.folder / name).write_bytes(content)
        return self

    def make_anew(self) -> Certificates:
        """As `make_all`, by an authority that nobody has seen."""
        for authority in ("authority", "stranger"):
            self._openssl(
                *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
                *("-keyout", f"{authority}.key", "-out", f"{authority}.pem", "-days", "2", "-subj", f"/CN={authority}"),
            )
        for name, authority in (("bookie", "authority"), ("client", "authority"), ("unknown", "stranger")):
            self._openssl(
                *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
                *("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}/OU=role"),
            )
            self._openssl(
                *("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key"),
                *("-CAcreateserial", "-out", f"{name}.pem", "-days", "2"),
            )
        return self

    def make_unit(self, name: str, unit: str, authority: str = "authority", days: int = 2) -> None:
        """A certificate whose subject has this organisational unit, behind another part; it ends after so many days."""
        self._openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/O=example/OU={unit}/OU=0:last/CN={name}"),
        )
        self._openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key"),
            *("-CAcreateserial", "-out", f"{name}.pem", "-days", str(days)),
        )

    def make_named(self, name: str, alternative: str) -> None:
        """A certificate of the authority for `alternative`, like "DNS:localhost"."""
        self._openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"),
        )
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={alternative}\n")
        self._openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "authority.pem", "-CAkey", "authority.key"),
            *("-CAcreateserial", "-out", f"{name}.pem", "-days", "2", "-extfile", f"{name}.ext"),
        )

    def settings(self, *, demand_client: bool = False, bookie: str = "bookie") -> dict[str, str]:
        """Keys of a bookie's configuration."""
        return {
            "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
            "tlsKeyStoreType": "PEM",
            "tlsTrustStoreType": "PEM",
            "tlsKeyStore": str(self.folder / f"{bookie}.key"),
            "tlsCertificatePath": str(self.folder / f"{bookie}.pem"),
            "tlsTrustStore": str(self.folder / "authority.pem"),
            "tlsClientAuthentication": str(demand_client).lower(),
        }

    def client_context(self, name: str | None = None) -> ssl.SSLContext:
        """Trusts the authority; shows the certificate of `name`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(self.folder / "authority.pem")
        if name is not None:
            context.load_cert_chain(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        return context

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)


@cache
def _all() -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        Certificates(Path(folder)).make_anew()
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}

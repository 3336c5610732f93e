"""`docs/http-api.md`, written from the table of routes.

    python -m bookie_pod.admin.document > docs/http-api.md

A test finds a stale page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

from bookie_pod.admin.routes import RESOURCES
from bookie_pod.server.http.api.call import JSON_TYPE
from bookie_pod.server.http.api.openapi import Schema, openapi
from bookie_pod.server.http.api.table import Group, Operation, Resource
from bookie_pod.server.http.routes import resources

_INTRODUCTION: Final = """\
# HTTP API of a bookie

This page is generated. Answers are declared in `bookie_protocol/admin_api/`, handlers and routes in
`bookie_pod/admin/`. After a change, run `python -m bookie_pod.admin.document > docs/http-api.md`. A running bookie
serves the same as an OpenAPI document at `/openapi.json`.

The server listens on `httpServerPort` (8000; Apache BookKeeper's code says 8080, its charts and runbooks 8000). Paths,
methods, parameters and answers are Apache BookKeeper's; what only Podkeeper has is marked *own*. The paths of
auto-recovery (`/api/v1/autorecovery/...`) speak of the whole cluster through the metadata service, so any bookie
answers them alike; only `process` speaks of the process that is asked. A process of its own for auto-recovery
(`bookie autorecovery`) serves what is about the cluster too: everything under `/api/v1/autorecovery`, `/api/v1/cluster`
and `/api/v1/ledger`, and of `/api/v1/bookie` the lists of bookies, `cluster_info` and `cookie`.

    curl -X PUT http://bookie-0:8000/api/v1/bookie/gc
    curl http://bookie-0:8000/api/v1/bookie/gc_details
    bookie gc run --watch --url http://bookie-0:8000

## Who may ask

Each route below names the role that it needs. `viewer` looks at states and lists; `operator` runs the cluster and gives
no data up; `admin` does everything: it deletes ledgers, reads them without their passwords, changes cookies and
settings. Passwords of ledgers are shown to `admin` alone. (`reader` and `writer` are for gRPC,
[grpc.md](grpc.md).) A bookie without users, as an unchanged configuration of
Apache BookKeeper leaves it, serves views to all who reach the port, and everything to its own machine alone: to
requests by a loopback address that no proxy passed on. `allowInsecureAccess=true` opens it. In Kubernetes the operator
turns on a token and HTTPS. [security.md](security.md) says step by step how a cluster is protected.

- `httpServerAuthTokenFile`: a file with bearer tokens, one a line, each followed by its roles and, if you like, by a
  name for the audit trail: `Zm9v... viewer,operator ci`. Without roles it is `admin`. Requests carry
  `Authorization: Bearer <token>`, commands `--token-file`. The file is read again when it changes, so a mounted secret
  can be rotated: put the new token beside the old one, change the clients, drop the old one. Probes and metrics stay
  open, since the kubelet and Prometheus' defaults send no token; `httpServerAuthProbes=true` closes them too.
- `httpServerTlsEnable`: HTTPS, and clients must show a certificate that `httpServerTrustStorePath` signs. Without
  tokens its subject says the roles, as in `OU=0:viewer` or `OU=0:bookie,operator`: a subject that names only roles
  that are not ours has no rights, and one that names none has `accessCertificateRoles`. Without HTTPS a
  token can be read on the way. `httpServerTlsClientAuthentication=false` asks for no certificate: that is for
  Kubernetes, whose probes have none, and goes with a token. New files count without a restart, a few seconds after they
  are there.

The pages at `/ui` are no API: [console.md](console.md) describes them. They alone take HTTP Basic, with a token as the
password, so that a browser can log in.

Changes and refusals are one line each, in `auditLogFile` or in the ordinary log, with the id of the request: the
`X-Request-Id` that came with it, or a new one that the answer has.

## What metrics are called

As Apache's bookie calls them, with its types and labels, so that its dashboards fill; some are our own, and there is no
JVM to tell of. A few of Apache's are there and stay at 0:

- `bookkeeper_server_WRITE_THREAD_QUEUED_LATENCY`: adds do not wait for a thread.
- `bookie_BOOKIE_RECOVERY_ADD_ENTRY`: adds of recoveries count with all others.
- `bookkeeper_server_CHANNEL_WRITE`: answers are not followed to the socket.
- `bookie_add_entry` and `bookie_read_entry`, by directory: `bookkeeper_server_ADD_ENTRY` and `READ_ENTRY` have them.
- `bookie_INDEX_INMEM_ILLEGAL_STATE_RESET`: there is no such state.

## Errors

An error says what is wrong in one line. 400: a parameter or the body is wrong. 401: no token. 403: the caller lacks
the role, or the bookie refuses to trust what was sent. 404: there is no such thing, or the path does not take this
method (in Apache's words). 408: the body did not come in time. 409: understood, and refused. 413: the body is too long.
503: the bookie does not serve yet, is busy, or could not find out; try again. 504: no result in time. 500 is a bug, and
the log has it.

Apache's bookie answers 500 in some cases that are the caller's: an unknown ledger (here 404), no body or a string where
a boolean belongs (here 400), a cookie that forbids an expansion (here 409). It takes any key and value in
`server_config`; here they must make a valid configuration. Its `list_disk_file` counts RocksDB's own logs among the
entry logs.

## What counts at once

Keys that are set with `PUT /api/v1/config/server_config` are forgotten at the next start. These count at once:
`minorCompactionThreshold`, `minorCompactionInterval`, `minorCompactionMaxTimeMillis`, `majorCompactionThreshold`,
`majorCompactionInterval`, `majorCompactionMaxTimeMillis`, `forceAllowCompaction`, `isThrottleByBytes`,
`compactionRateByBytes`, `compactionRateByEntries`, `gcMetadataOpRateLimit`, `useTargetEntryLogSizeForGc`, and
`gcWaitTime` from the next pass on. `ledgerDirectories` and `indexDirectories` count for
`PUT /api/v1/bookie/expand_storage`. Everything else was read at the start.

## Bounds

An error of one of Apache's paths is a line of text, as there. One of Podkeeper's own is a [problem](#problem)
(`application/problem+json`, RFC 9457): programs go by its `status` and `type`, and `detail` is for people.
`urn:podkeeper:problem:not-decommissioned` means that this bookie is not being decommissioned,
`urn:podkeeper:problem:no-cookie` that it has none. Members that a program does not know are to be ignored: later
releases tell more.

Requests end after 30 s (the sanity test after 60 s). 16 of the admin API run at a time, and 4 of these places are kept
for operators and admins. A body is at most 512 KiB and has to come within 10 s; only then does its request
take a place.

Strangers may fill the metadata service. So a search ends early where ledgers have thousands of fragments or much custom
metadata, and lists the ledgers of which it shows a part as `shortened`; `ledger/metadata` has all of one, or with
`most` a part. Two lists of ledgers with metadata are made at a time. A page of streams ends after 20,000 ledgers.
Replicas are listed of ledgers with at most 200 bookies and 8,000 places in their ensembles (else 409). Each of these
searches, and what reads all ledgers (`decommission/plan`, `autorecovery/safety_check`), runs once at a time for
viewers, and once for operators and admins; the next one begins after a pause. Proofs run two at a time for
each of them.

Lists of ledgers and entries are streamed in bounded memory; a fault in the middle breaks the connection off, so half a
list is never taken for the whole.
"""


def http_api_page() -> str:
    """The whole page."""
    table = resources(RESOURCES, frozenset())
    document = openapi(table, version="", guarded=frozenset())
    lines = [_INTRODUCTION]
    for group, title in (
        (Group.PROBE, "Probes"),
        (Group.METRICS, "Metrics"),
        (Group.ADMIN, "Administration"),
    ):
        lines += [f"## {title}", ""]
        for resource in (each for each in table if each.group is group):
            for operation in resource.operations:
                lines += _operation(resource, operation, document)
    lines += ["## Objects", ""]
    for name, schema in document["components"]["schemas"].items():
        lines += _object(name, schema)
    return "\n".join(lines).rstrip() + "\n"


def _operation(resource: Resource, operation: Operation, document: dict[str, Any]) -> Iterator[str]:
    own = " *own*" if resource.own else ""
    method = operation.route.method
    yield f"### {method} {resource.path}{own}"
    yield ""
    yield f"{operation.summary}."
    yield ""
    if operation.role is not None:
        yield f"- role: `{operation.role.value}`"
    described = document["paths"][resource.path][method.lower()]
    for parameter in described["parameters"]:
        yield _parameter(parameter)
    if "requestBody" in described:
        yield f"- body: {_body(described['requestBody'])}"
    (content, *_) = described["responses"]["200"]["content"].items()
    yield f"- answers 200: {_type(content[1]['schema']) if content[0] == JSON_TYPE else 'text'}. {operation.about}"
    for other in operation.others:
        shown = "[Problem](#problem)" if resource.is_own and other.status >= 400 else "text"
        yield f"- answers {other.status}: {shown}. {other.about}"
    yield ""


def _body(described: dict[str, Any]) -> str:
    (content,) = described["content"].values()
    return _type(content["schema"]) + ("" if described["required"] else ", or none")


def _parameter(parameter: dict[str, Any]) -> str:
    schema = parameter["schema"]
    kind = " or ".join(f"`{choice}`" for choice in schema.get("enum", ())) or schema["type"]
    required = ", required" if parameter["required"] else ""
    default = f", default {str(schema['default']).lower()}" if schema.get("default", "") != "" else ""
    return f"- `{parameter['name']}` ({kind}{required}{default}): {parameter['description']}"


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f'`"{each}"`' for each in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {_type(schema['items'])}"
    if schema.get("type") == "object":
        return f"object of {_type(schema.get('additionalProperties', {}))}"
    return str(schema.get("type", "anything"))


def _object(name: str, schema: Schema) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    yield schema["description"]
    yield ""
    yield "| Member | Type | Meaning |"
    yield "|---|---|---|"
    for member, described in schema["properties"].items():
        yield f"| `{member}` | {_type(described)} | {described['description']} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(http_api_page())

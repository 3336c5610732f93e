"""Every field, rule and column of the custom resources: `docs/bookiecluster.md` and `docs/bookiejob.md`.

The pages are made of the same source as the definitions; the second also says how to run jobs on Kubernetes.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from bookie_operator.crds import names
from bookie_operator.crds.config_keys import RESERVED, known_keys
from bookie_operator.crds.definitions import CLUSTER, JOB, TASK, Kind, resource_schema
from bookie_operator.crds.job_rules import OWN_SPARK_CONF
from bookie_operator.crds.schema import Schema

_INTRODUCTION: Final = """\
# BookieCluster and BookieTask

This page is generated: edit the docstrings in `operator/bookie_operator/crds/` and run
`python -m bookie_operator.crds.generate`, which writes the definitions in `crds/` too.

The smallest cluster, with a ZooKeeper of yours:

```yaml
apiVersion: podkeeper.dev/v1alpha1
kind: BookieCluster
metadata:
  name: demo
spec:
  version: "0.1.0"
  metadataService:
    uri: zk+hierarchical://zookeeper:2181
  storage:
    journal: {size: 10Gi}
    ledger: {size: 100Gi}
```

`kubectl get bkc`, `kubectl scale bkc demo --replicas=4` and `kubectl explain bkc.spec.storage` work as for any
resource; `kubectl bookie status demo` tells more ([kubectl-bookie.md](kubectl-bookie.md)).

What is wrong with a resource shows in one of two places. What the API server can tell by itself it refuses at once.
What depends on the state of the cluster, or may come with a sync of Git, is accepted; then the condition `SpecValid`
is false, its message names field and remedy, and nothing is changed until it is mended.
"""
_ANNOTATIONS: Final = (
    (names.PAUSED, "`true`: the operator finishes the step that it is in and then changes nothing more, until it is "
     "removed. Not even a deletion goes on."),
    (names.ADOPT, "on a PersistentVolumeClaim, the name of the cluster: it becomes the cluster's own claim, with "
     "its labels."),
    (names.CONFIRM_DELETE, "the name of the cluster: with `storage.retention.whenDeleted: Delete`, a deletion takes "
     "the volumes and the metadata too."),
    (names.RESTART, "any text, such as the time: each change restarts all bookies, through the gates of an update."),
    (names.SKIP_REPLICATION_CHECK, "id of the running operation (`status.operation.id`): it no longer waits until "
     "every ledger has its copies."),
    (names.ACCEPT_LEDGER_LOSS, "the value that the condition names: the ledgers that it lists are given up, and the "
     "repair goes on."),
    (names.ACCEPT_METADATA, "a URI of `spec.metadataService`: the metadata there are this cluster's and no older copy, "
     "although no bookie is registered there, and none can tell whether any is where the metadata were."),
)  # fmt: skip


def reference_page() -> str:
    """The whole page as Markdown."""
    lines = [_INTRODUCTION]
    for kind in (CLUSTER, TASK):
        lines += kind_reference(kind)
    lines += _annotations()
    lines += _config()
    return "\n".join(lines).rstrip() + "\n"


def kind_reference(kind: Kind) -> Iterator[str]:
    """Lines of its fields, rules and columns."""
    schema = resource_schema(kind)
    yield f"## {kind.kind}"
    yield ""
    yield f"{kind.description} Short name `{kind.short}`, category `bookkeeper`."
    yield ""
    for part in ("spec", "status"):
        yield from _object(part, schema["properties"][part], defaults=part == "spec")
    yield f"### What is refused in a {kind.kind}"
    yield ""
    yield "| Where | Message |"
    yield "|---|---|"
    for rule in kind.rules:
        where = ".".join(word for word in (rule.path, rule.field) if word)
        yield f"| {f'`{where}`' if where else 'resource'} | {_cell(rule.message)} |"
    yield ""
    yield "### Columns of `kubectl get`"
    yield ""
    yield "| Column | From | Meaning |"
    yield "|---|---|---|"
    for column in kind.columns:
        wide = ", with `-o wide`" if column.get("priority") else ""
        yield f"| {column['name'].upper()}{wide} | `{_cell(column['jsonPath'])}` | {column['description']} |"
    yield ""


def _object(path: str, schema: Schema, *, defaults: bool) -> Iterator[str]:
    """One table, and one for each object below."""
    yield f"### `{path}`"
    yield ""
    yield schema["description"]
    yield ""
    yield "| Field | Type | Default | Meaning |" if defaults else "| Field | Type | Meaning |"
    yield "|---|---|---|---|" if defaults else "|---|---|---|"
    below: list[tuple[str, Schema]] = []
    for name, child in schema["properties"].items():
        inner = child["items"] if child["type"] == "array" else child
        if "properties" in inner:
            below.append((f"{path}.{name}" + ("[]" if child["type"] == "array" else ""), inner))
        cells = [f"`{name}`", _type(child), _cell(child.get("description", ""))]
        if defaults:
            cells.insert(2, _default(name, child, schema.get("required", ())))
        yield "| " + " | ".join(cells) + " |"
    yield ""
    for place, child in below:
        yield from _object(place, child, defaults=defaults)


def _type(schema: Schema) -> str:
    match schema["type"]:
        case "array":
            return f"list of at most {schema['maxItems']}: {_type(schema['items'])}"
        case "object" if "properties" in schema:
            return "object"
        case "object" if "additionalProperties" in schema:
            return f"map of at most {schema['maxProperties']}: {_type(schema['additionalProperties'])}"
        case "object":
            return "object as in Kubernetes"
        case "string" if "enum" in schema:
            return ", ".join(f"`{value}`" for value in schema["enum"] if value)
        case "string":
            return "text"
        case "integer":
            return f"whole number{_limits(schema)}"
    return "true, false"


def _limits(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f", {low} to {high}"
    return f", at least {low}" if low is not None else ""


def _default(name: str, schema: Schema, required: Any) -> str:
    if name in required:
        return "required"
    if "default" not in schema:
        return "unset"
    default = schema["default"]
    if "properties" in schema:
        return "see below"
    return f"`{json.dumps(default)}`" if not isinstance(default, str) else (f"`{default}`" if default else "empty")


def _annotations() -> Iterator[str]:
    yield f"## Annotations of a {CLUSTER.kind}"
    yield ""
    yield "They are for a person at a moment, and have no place in Git."
    yield ""
    yield "| Annotation | Value and meaning |"
    yield "|---|---|"
    for name, text in _ANNOTATIONS:
        yield f"| `{name}` | {text} |"
    yield ""


def _config() -> Iterator[str]:
    yield "## Keys of `spec.config`"
    yield ""
    yield "Keys and values are those of [configuration.md](configuration.md), all values as text. An unknown key or a"
    yield "value of the wrong kind makes the condition `SpecValid` false. A change of these keys counts at once,"
    yield "without a restart; a change of any other restarts the bookies one by one:"
    dynamic = sorted({f"`{key.name}`" for _, key in known_keys().values() if key.dynamic})
    yield ", ".join(dynamic) + "."
    yield ""
    yield "The operator sets these keys itself:"
    yield ""
    yield "| Key | Instead |"
    yield "|---|---|"
    for key, remedy in RESERVED.items():
        yield f"| `{key}` | {remedy} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_JOB_INTRODUCTION: Final = """\
# BookieJob

This page is generated: edit `operator/bookie_operator/crds/` and run `python -m bookie_operator.crds.generate`.

For those who run jobs on the ledgers of a cluster (audits, offloads, copies) on Kubernetes. What each job does, and
its arguments, is in [jobs.md](jobs.md); how ledgers are read and written with Spark is in [spark.md](spark.md).

## Once

```yaml
apiVersion: podkeeper.dev/v1alpha1
kind: BookieJob
metadata:
  name: audit-now
  namespace: storage
spec:
  clusterRef:
    name: events
  kind: audit
```

    kubectl -n storage wait bookiejob/audit-now --for=condition=Complete --timeout=1h
    kubectl -n storage get bookiejob audit-now -o jsonpath='{.status.lastResult}'

The operator makes one Job of Kubernetes, `audit-now-job`, that runs `bookie job` in the image with Spark. Progress is
in the log of its pod:

    kubectl -n storage logs -f -l podkeeper.dev/job=audit-now,app.kubernetes.io/component=job

It runs once, whatever becomes of the Job: to run it again, make another BookieJob. A Job that is deleted before
it has ended counts as failed.

## On a schedule

```yaml
apiVersion: podkeeper.dev/v1alpha1
kind: BookieJob
metadata:
  name: weekly-scrub
  namespace: storage
spec:
  clusterRef:
    name: events
  kind: scrub
  args: ["--max-bytes-per-second", "50m"]
  schedule: 0 3 * * 0
  timeZone: Europe/Berlin
  activeDeadlineSeconds: 86400
```

This is a CronJob, `weekly-scrub-job`; schedule, time zone, `concurrencyPolicy`, `startingDeadlineSeconds` and the
limits of the history mean what they mean there. A run out of turn is

    kubectl -n storage create job --from=cronjob/weekly-scrub-job scrub-today

Its result counts as any other. While the cluster is not there, is being deleted or is paused, no run begins. A run
that goes on is left alone: jobs are clients of the cluster, and hold up none of its operations.

## How it ended

| outcome | exit code | meaning |
|---|---|---|
| `Succeeded` | 0 | the work is done |
| `Findings` | 2 | the work is done, and there is something to look at: lost copies, orphans; it is not tried again |
| `Failed` | other | it was tried again `backoffLimit` times; jobs are safe to be repeated, and go on where they ended |
| `Unknown` | | the Job was gone before anybody had seen how it ended; of one that runs once it counts as failed |

`status.lastResult` is the result row of the last run that gave one, `status.history` tells how the last ones ended. A
pod that was evicted, or went with its node, counts as no failure. A pod that is deleted stops its work in good order:
its result row says `interrupted`, its exit code is 143, and the next one goes on. `LastRunSucceeded` is the condition
to alert on, or the metric `podkeeper_operator_job_last_outcome`.

| reason of `Ready` | what to do |
|---|---|
| `ClusterNotFound` | make the BookieCluster, or name the right one in another BookieJob |
| `ClusterNotReady` | wait until the operator has made the cluster's metadata |
| `ClusterPaused` | resume the cluster |
| `ClusterDeleting` | delete the BookieJob too, unless the cluster is to come back |
| `InvalidSpec` | each message names field and remedy |
| `NameTaken` | wait, or delete the object that the message names |
| `SpecChanged` | a job that runs once does not follow a change: put `spec` back, or make another BookieJob |
| `Refused` | the message says what Kubernetes refused: quota, rights, or a part of a pod |
| `RunFailed` | the message has its last words; the log of the pod has more |
| `Pending`, `Running`, `Suspended`, `Scheduled` | nothing |

## Where the work is done

Java passes results on and does little else, so it is started with `-XX:TieredStopAtLevel=1`, which leaves more of the
processors to those who write. `spark.driver.extraJavaOptions` and `spark.executor.extraJavaOptions` in `sparkConf` take
its place.

`executors.instances: 0` (the default): all of it in the driver's pod, with as many tasks at a time as its limit of
processors allows. The result is the same as with executors. Give `resources`: half of the memory is Java's, half is
Python's.

With executors, the driver makes pods beside it, in client mode: they find it by a headless Service. For that it needs
an account that may make pods, and nothing else:

- the chart `podkeeper-cluster` makes it (`CLUSTER-spark`) with `spark.rbac.create: true`, or
- you make one with the rules in [the chart](../charts/podkeeper-cluster/files/rbac/spark-driver.yaml), and name it in
  `executors.serviceAccountName`.

Executors and drivers without executors get no token of Kubernetes. All pods satisfy the restricted Pod Security
Standard. A NetworkPolicy lets driver and executors of one job reach each other, and no other pod reach them. They bear
the labels of the cluster, so the bookies' policies let them in.

## Passwords and credentials

Nothing secret belongs into `args` or `sparkConf`: the resource, a ConfigMap and plans of Spark show them.

- Ledgers that have a password: `passwordSecret`. It is mounted as a file, and given as `--password-file`. Without it
  the password that each ledger recorded counts.
- Object stores: `env` with `valueFrom`, or files by `volumes` and `volumeMounts`. Driver and executors get both.
- `space` and `compact-report` ask the bookies' admin API: their driver gets the cluster's token, unless `args` name
  another `--admin-token-file`.
- A login to ZooKeeper (`zkAuthCredentialsPath` in the cluster's `config`), its volume, and the certificates of `tls`
  are taken from the cluster.

```yaml
apiVersion: podkeeper.dev/v1alpha1
kind: BookieJob
metadata:
  name: nightly-offload
  namespace: storage
spec:
  clusterRef:
    name: events
  kind: offload
  args: ["--target", "s3a://archive/events", "--older-than", "7d", "--max-concurrent", "4"]
  schedule: "@daily"
  executors:
    instances: 4
    cores: 2
    memory: 4Gi
  resources:
    limits:
      cpu: "1"
      memory: 2Gi
  sparkConf:
    spark.hadoop.fs.s3a.endpoint: https://s3.example.org
  env:
    - name: AWS_ACCESS_KEY_ID
      valueFrom:
        secretKeyRef:
          name: archive
          key: id
    - name: AWS_SECRET_ACCESS_KEY
      valueFrom:
        secretKeyRef:
          name: archive
          key: secret
```

## The image

`docker build --target spark -t podkeeper:0.1.0-spark .` builds it: Podkeeper, Java, PySpark and pyarrow, as user 10001
with a root file system that may be read-only. It holds Spark's own jars alone. For an object store that needs more,
such as `hadoop-aws`, build an image on it with the jars in `$SPARK_HOME/jars`, and name it in `image`.

Without `image` it is that of the cluster with `-spark` after the tag: `podkeeper:0.1.0` has `podkeeper:0.1.0-spark`.

## Without a BookieJob

- On any machine: `bookie job audit --metadata URI`.
- As any application of Spark: `spark-submit --master MASTER /opt/podkeeper/job.py audit --metadata URI`, in the image;
  [examples/spark-submit.sh](../examples/spark-submit.sh) runs one on Kubernetes. It works with other operators for
  Spark too, with `local:///opt/podkeeper/job.py` as the main application.
- In a notebook: [examples/ledgers.ipynb](../examples/ledgers.ipynb) reads a ledger, follows a stream, and writes
  exactly once.
- Spark Connect: the format `bookkeeper` works from `SparkSession.builder.remote(...)` if Podkeeper is installed where
  the server runs; the image has all of it. Clients need nothing of Podkeeper, but `pip install "pyspark[connect]"`:
  PySpark with gRPC, pandas, pyarrow and zstandard.

"""


def job_page() -> str:
    """The whole page as Markdown."""
    return "\n".join([_JOB_INTRODUCTION, *kind_reference(JOB), *_own_keys()]).rstrip() + "\n"


def _own_keys() -> Iterator[str]:
    yield "## Keys of `sparkConf` that the operator sets"
    yield ""
    yield "They follow from `executors`, `resources` and the namespace:"
    yield ", ".join(f"`{key}`" for key in OWN_SPARK_CONF) + "."

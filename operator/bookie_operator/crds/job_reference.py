"""`docs/bookiejob.md`: how to run jobs on Kubernetes, and every field, rule and column of a BookieJob.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bookie_operator.crds.definitions import JOB
from bookie_operator.crds.job_rules import OWN_SPARK_CONF
from bookie_operator.crds.reference import kind_reference

_INTRODUCTION: Final = """\
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

It runs once, whatever becomes of the Job: to run it again, make another BookieJob. A Job that somebody deletes before
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
| `Refused` | what Kubernetes refused stands in the message: quota, rights, or a part of a pod |
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
Standard. A NetworkPolicy lets driver and executors of one job reach each other, and nobody else reach them. They bear
the labels of the cluster, so the bookies' policies let them in.

## Passwords and credentials

Nothing secret belongs into `args` or `sparkConf`: they stand in the resource, in a ConfigMap and in plans of Spark.

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
    return "\n".join([_INTRODUCTION, *kind_reference(JOB), *_own_keys()]).rstrip() + "\n"


def _own_keys() -> Iterator[str]:
    yield "## Keys of `sparkConf` that the operator sets"
    yield ""
    yield "They follow from `executors`, `resources` and the namespace:"
    yield ", ".join(f"`{key}`" for key in OWN_SPARK_CONF) + "."

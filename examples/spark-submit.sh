#!/usr/bin/env bash
# Runs a job on Kubernetes as an application of Spark, with neither the operator nor a BookieJob.
#
#   examples/spark-submit.sh audit --metadata "zk+hierarchical://zk-0:2181;zk-1:2181/ledgers"
#
# It needs kubectl, and spark-submit of Spark 4.3 (`pip install pyspark==4.3.0`). The account has to be one that may make
# pods: the chart podkeeper-cluster makes CLUSTER-spark with spark.rbac.create=true.
set -euo pipefail

NAMESPACE=${NAMESPACE:-storage}
ACCOUNT=${ACCOUNT:-events-spark}
IMAGE=${IMAGE:-podkeeper:0.1.0-spark}
EXECUTORS=${EXECUTORS:-2}
MEMORY=${MEMORY:-1g}

if [ $# -eq 0 ]; then
  echo "usage: $0 JOB [arguments]; spark-submit.sh audit --help lists those of a job" >&2
  exit 2
fi
template=$(cd "$(dirname "$0")" && pwd)/spark-pod.yaml
server=$(kubectl config view --minify -o "jsonpath={.clusters[0].cluster.server}")

exec spark-submit \
  --master "k8s://$server" \
  --deploy-mode cluster \
  --name "$1" \
  --conf spark.kubernetes.namespace="$NAMESPACE" \
  --conf spark.kubernetes.container.image="$IMAGE" \
  --conf spark.kubernetes.authenticate.driver.serviceAccountName="$ACCOUNT" \
  --conf spark.kubernetes.driver.podTemplateFile="$template" \
  --conf spark.kubernetes.executor.podTemplateFile="$template" \
  --conf spark.kubernetes.driver.label.app.kubernetes.io/component=job \
  --conf spark.kubernetes.executor.disableConfigMap=true \
  --conf spark.kubernetes.driver.service.deleteOnTermination=false \
  --conf spark.kubernetes.driver.ownPersistentVolumeClaim=false \
  --conf spark.executor.instances="$EXECUTORS" \
  --conf spark.executor.memory="$MEMORY" \
  --conf spark.executor.memoryOverhead="$MEMORY" \
  --conf spark.driver.memory="$MEMORY" \
  --conf spark.log.level=WARN \
  local:///opt/podkeeper/job.py "$@"

# One image for every process of Podkeeper: `bookie` (entry point) and, with that as the command, `bookie-operator`.
#
#   docker build -t podkeeper:X.Y.Z --build-arg VERSION=X.Y.Z --build-arg REVISION=$(git rev-parse HEAD) .
#
# X.Y.Z is the version of pyproject.toml, which `make images` reads there.
#
# And one with Spark and Java beside them, for jobs: driver and executors run it.
#
#   docker build --target spark -t podkeeper:X.Y.Z-spark .
#
# And one that the bookies, their init jobs and auto-recovery of the Apache Pulsar chart can run (docs/pulsar.md).
#
#   docker build --target pulsar -t podkeeper-pulsar:X.Y.Z .
#
# Python and every dependency have wheels for amd64 and arm64, so nothing is compiled, for neither.
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_BUILD_ISOLATION=1 PIP_USE_PEP517=1
WORKDIR /src
# For `strip`; without it the image is 20 MB larger, and works.
RUN apt-get update -q && apt-get install -y -q --no-install-recommends binutils || echo "no binutils: symbols stay" >&2
# What is installed is named by hash, the tool that builds wheels too.
COPY requirements-build.lock requirements-runtime.lock ./
RUN python3 -m pip install -q --require-hashes --only-binary :all: -r requirements-build.lock \
 && python3 -m pip wheel -q --require-hashes -w /wheels -r requirements-runtime.lock \
 && python3 -m venv --without-pip /opt/podkeeper \
 && python3 -m pip --python /opt/podkeeper/bin/python3 install -q --no-compile --no-index --no-deps /wheels/*.whl
COPY . .
RUN python3 -m pip wheel -q --no-deps -w /own . \
 && python3 -m pip --python /opt/podkeeper/bin/python3 install -q --no-compile --no-index --no-deps /own/*.whl \
 && /opt/podkeeper/bin/python3 docker/trim.py /opt/podkeeper

FROM ${PYTHON_IMAGE} AS build-spark
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_BUILD_ISOLATION=1 PIP_USE_PEP517=1
WORKDIR /src
RUN apt-get update -q && apt-get install -y -q --no-install-recommends binutils || echo "no binutils: symbols stay" >&2
COPY requirements-build.lock requirements-spark.lock ./
RUN python3 -m pip install -q --require-hashes --only-binary :all: -r requirements-build.lock \
 && python3 -m pip wheel -q --require-hashes -w /wheels -r requirements-spark.lock \
 && python3 -m venv --without-pip /opt/podkeeper \
 && python3 -m pip --python /opt/podkeeper/bin/python3 install -q --no-compile --no-index --no-deps /wheels/*.whl \
 && rm -r /wheels
COPY . .
# Without Spark's own archive of itself, Python takes the package, which is compiled.
RUN python3 -m pip wheel -q --no-deps -w /own . \
 && python3 -m pip --python /opt/podkeeper/bin/python3 install -q --no-compile --no-index --no-deps /own/*.whl \
 && rm /opt/podkeeper/lib/python3*/site-packages/pyspark/python/lib/pyspark.zip \
 && /opt/podkeeper/bin/python3 docker/trim.py /opt/podkeeper \
 && cp docker/spark/job.py docker/spark/entrypoint /opt/podkeeper/

FROM ${PYTHON_IMAGE} AS spark
ARG VERSION=unknown
ARG REVISION=unknown
ARG SOURCE=
LABEL org.opencontainers.image.title="podkeeper-spark" \
      org.opencontainers.image.description="Apache BookKeeper for Kubernetes, with Spark: jobs on ledgers" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Java 17 is what the tests run; a newer Debian has 21, which Spark takes too.
RUN mkdir -p /usr/share/man/man1 && apt-get update -q \
 && (apt-get install -y -q --no-install-recommends openjdk-17-jre-headless \
     || apt-get install -y -q --no-install-recommends openjdk-21-jre-headless) \
 && rm -rf /var/lib/apt/lists/*
RUN echo 'podkeeper:x:10001:10001::/tmp:/usr/sbin/nologin' >>/etc/passwd \
 && echo 'podkeeper:x:10001:' >>/etc/group
COPY --from=build-spark /opt/podkeeper /opt/podkeeper
RUN ln -s /opt/podkeeper/lib/python3*/site-packages/pyspark /opt/spark
# The root file system may be read-only: what Spark writes goes to /tmp.
ENV PATH=/opt/podkeeper/bin:/opt/spark/bin:/usr/local/bin:/usr/bin:/bin SPARK_HOME=/opt/spark HOME=/tmp \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /tmp
STOPSIGNAL SIGTERM
ENTRYPOINT ["/opt/podkeeper/entrypoint"]
CMD ["job", "--help"]

# What the last stage stands on: Debian and Python, without what nothing here needs.
FROM ${PYTHON_IMAGE} AS root
COPY docker/trim_root.py /tmp/
# A name for the user, because permittedStartupUsers goes by names.
RUN python3 /tmp/trim_root.py && rm /tmp/trim_root.py \
 && echo 'podkeeper:x:10001:10001::/nonexistent:/usr/sbin/nologin' >>/etc/passwd \
 && echo 'podkeeper:x:10001:' >>/etc/group

FROM root AS pulsar
ARG VERSION=unknown
ARG REVISION=unknown
ARG SOURCE=
LABEL org.opencontainers.image.title="podkeeper-pulsar" \
      org.opencontainers.image.description="Apache BookKeeper for Kubernetes: the bookies of an Apache Pulsar chart" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/podkeeper /opt/podkeeper
COPY docker/pulsar/commands.py /opt/podkeeper/pulsar/
COPY docker/pulsar/conf /pulsar/conf
# The chart's pods run as some user of group 0, and write the configuration before they begin.
RUN chmod 755 /opt/podkeeper/pulsar/commands.py && mkdir -p /pulsar/bin /pulsar/data \
 && for name in apply-config-from-env.py bookkeeper pulsar; do ln -s /opt/podkeeper/pulsar/commands.py "/pulsar/bin/$name"; done \
 && ln -s /opt/podkeeper/pulsar/commands.py /usr/local/bin/nslookup \
 && chgrp -R 0 /pulsar && chmod -R g=u /pulsar
ENV PATH=/opt/podkeeper/bin:/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10000:0
WORKDIR /pulsar
EXPOSE 3181 8000
STOPSIGNAL SIGTERM
CMD ["bin/pulsar", "bookie"]

# Copied, not built upon: what an image builds upon stays in it, deleted or not.
FROM scratch
ARG PYTHON_IMAGE
ARG VERSION=unknown
ARG REVISION=unknown
ARG SOURCE=
LABEL org.opencontainers.image.title="podkeeper" \
      org.opencontainers.image.description="Apache BookKeeper for Kubernetes: bookie, auto-recovery and operator" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}"
COPY --from=root / /
COPY --from=build /opt/podkeeper /opt/podkeeper
# The root file system may be read-only: nothing is written beside the volumes.
ENV PATH=/opt/podkeeper/bin:/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
# BookKeeper protocol, gRPC, HTTP
EXPOSE 3181 3182 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["bookie"]
CMD ["serve"]

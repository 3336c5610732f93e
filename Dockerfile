# One image for every process of Podkeeper: `bookie` (entry point) and, with that as the command, `bookie-operator`.
#
#   docker build -t podkeeper:0.1.0 --build-arg REVISION=$(git rev-parse HEAD) .
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

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="podkeeper" \
      org.opencontainers.image.description="Apache BookKeeper for Kubernetes: bookie, auto-recovery and operator" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# A name for the user, because permittedStartupUsers goes by names.
RUN echo 'podkeeper:x:10001:10001::/nonexistent:/usr/sbin/nologin' >>/etc/passwd \
 && echo 'podkeeper:x:10001:' >>/etc/group
COPY --from=build /opt/podkeeper /opt/podkeeper
# The root file system may be read-only: nothing is written beside the volumes.
ENV PATH=/opt/podkeeper/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
# BookKeeper protocol, gRPC, HTTP
EXPOSE 3181 3182 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["bookie"]
CMD ["serve"]

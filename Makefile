# Two commands on a fresh Debian or Ubuntu machine with Python 3.11, make and a Java 17 runtime:
#   make run     the main job on embedded defaults; FILE=path writes a file of yours
#   make test    the tests; `make check` is what one runs all day (docs/testing.md)
# Everything is installed into .venv from requirements.lock, by hash.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
FILE   ?=
# Of a ring only some files.
TESTS  ?= tests
# Workers take whole files, in the order of tests/conftest.py, whatever the hashes of a run. Tests wait for processes
# and disks as much as they compute, so there are two for each processor.
WORKERS  ?= $(shell n=$$(( $$(nproc) * 2 )); echo $$((n > 12 ? 12 : n)))
# requirements.lock has everything; of it -runtime what the image runs, -spark what the image with
# Spark runs, -build what builds the wheels in them. -kerberos is what has to be compiled, -connect what only clients of
# Spark Connect need.
COMPILE  = $(BIN)/uv pip compile -q --generate-hashes --no-header --python-version 3.11
PARALLEL = PYTHONHASHSEED=0 $(BIN)/pytest -n $(WORKERS) --dist=loadfile --no-loadscope-reorder

# What was compiled is kept, whatever the shell says: every worker would compile all tests, and every bookie, command and
# task of Spark that they start the whole product.
unexport PYTHONDONTWRITEBYTECODE

# Each ring has the shorter ones; tests/rings.toml says which tests wait for a longer one, and why.
NOT_HERE = not interop and not pulsar and not peer and not seeds and not e2e
CHECK    = not wide and not change and not slow and not zookeeper and not etcd
# What is asked for by name runs whole, but for what is slow.
TEST     = $(if $(filter tests,$(TESTS)),not change and not etcd and )not slow

# The image, by docker, podman or buildah, loaded into kind, k3d or minikube; and with operator and bookies: docker/images and
# docker/try-kubernetes have the settings.
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
IMAGE ?= podkeeper:$(VERSION)

.PHONY: images try-kubernetes run check test test-change ring test-long test-etcd times mutants simulate campaign soak interop pulsar peer e2e release-check changes changelog lint docs site lock bench clean java

run: $(VENV)/.installed
	$(BIN)/bookie trial $(FILE)

# Its tests have their files in memory where there is room (on disks they are in `make test`), and draw 10 examples where
# they name no number.
IN_MEMORY := $(shell test "$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 2000000 2>/dev/null && echo /dev/shm)
check: TESTS = tests/unit tests/contract
check: $(VENV)/.installed
	@$(if $(IN_MEMORY),TMPDIR=$(IN_MEMORY)) $(MAKE) --no-print-directory -j2 lint ring TESTS="$(TESTS)" RING="$(CHECK)" \
	  KEPT= RING_ARGS=--hypothesis-profile=check

test: $(VENV)/.installed java
	@$(MAKE) --no-print-directory -j2 lint ring TESTS="$(TESTS)" RING="$(TEST)"

# All tests that `.ci/run` runs without Maven, Go and Kubernetes; it does so in two parts. ETCD_RING= is for machines that have
# no etcd. A test has more time than alone: it is to end when it hangs, not when a whole Kubernetes runs beside it.
ETCD_RING ?= 1
test-change: java
	@$(MAKE) --no-print-directory ring TESTS="$(TESTS)" RING="not slow$(if $(ETCD_RING),, and not etcd)" \
	  RING_ARGS=--patience=2.5

# The tests of a ring; linters run beside them.
KEPT := $(VENV)/.classes
ring: $(VENV)/.compiled $(KEPT)
	$(PARALLEL) $(TESTS) -m "$(RING) and $(NOT_HERE)" $(RING_ARGS) $(PYTEST_ARGS)

# What no shorter ring has.
test-long: $(VENV)/.installed $(VENV)/connect java $(if $(filter tests,$(TESTS)),test-etcd)
	$(PARALLEL) $(TESTS) -m "slow and not interop and not pulsar and not peer and not e2e" $(PYTEST_ARGS)

# All that needs etcd, on a newer one than Debian's.
ETCD_NEWER := $(VENV)/etcd
test-etcd: $(VENV)/.installed java $(ETCD_NEWER)
	PATH="$(CURDIR)/$(ETCD_NEWER):$$PATH" $(PARALLEL) $(TESTS) -m "etcd and not e2e" $(PYTEST_ARGS)

# Where the time of `make test` goes: docs/testing.md.
TIMES := build/times.jsonl
times: $(VENV)/.installed java
	mkdir -p $(dir $(TIMES)) && rm -f $(TIMES)
	PYTHONHASHSEED=0 $(BIN)/python -m pytest -p tests.support.times --times=$(TIMES) -n $(WORKERS) --dist=loadfile \
	  --no-loadscope-reorder $(TESTS) -m "$(TEST) and $(NOT_HERE)" $(PYTEST_ARGS)
	$(BIN)/python -m tests.support.times $(TIMES)

# Would the tests notice a wrong line? So many seeded changes, one at a time.
N    ?= 20
SEED ?= 1
mutants: $(VENV)/.installed java
	$(BIN)/python -m tests.mutants --number $(N) --seed $(SEED) $(MUTANTS_ARGS)

simulate: $(VENV)/.installed java
	PYTHONHASHSEED=0 $(BIN)/pytest tests/simulation tests/spark/test_exactly_once.py -m seeds $(PYTEST_ARGS)

# Faults of every kind on real processes, which are judged: docs/reliability.md. Needs root and a C compiler.
MINUTES ?= 10
campaign: $(VENV)/.installed java
	$(BIN)/python -m tests.campaign --seed $(SEED) --minutes $(MINUTES) $(CAMPAIGN_ARGS)

# Does a bookie leak under mixed load? Prints slopes, draws build/soak.png, and fails if one rises.
soak: MINUTES = 60
soak: $(VENV)/.installed
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES) --out build/soak.png $(SOAK_ARGS)

# INTEROP="interop and not slow" is what a change has to pass.
# KERBEROS= is for machines that have neither its library nor a KDC. Kept classes are made once, as those of Spark.
INTEROP  ?= interop
KERBEROS ?= 1
interop: TESTS = tests/interop
interop: $(VENV)/$(if $(KERBEROS),.kerberos,.installed) java
	@$(BIN)/python -m tests.interop.java_classes || true
	$(PARALLEL) $(TESTS) -m "$(INTEROP)" --timeout=900 $(if $(KERBEROS),,--ignore=tests/interop/test_kerberos.py) $(PYTEST_ARGS)

# A broker of Apache Pulsar from Maven, one for all tests; PULSAR_VERSION=5.0.0-M1 takes another release, and
# PULSAR_METADATA=embedded (or oxia, with OXIA_SERVER) another metadata service than ZooKeeper.
pulsar: $(VENV)/.installed java
	$(BIN)/pytest tests/pulsar -m pulsar $(PYTEST_ARGS)

# Apache's own tests over bookies of ours; tests/peer/__init__.py. CLASSES="TestTLS or TestAuth", BOOKIES=java.
CLASSES ?=
BOOKIES ?= ours
peer: $(VENV)/.installed java
	PEER_BOOKIES=$(BOOKIES) $(BIN)/pytest tests/peer -m peer $(if $(CLASSES),-k "$(CLASSES)") $(PYTEST_ARGS)

# Needs KUBECONFIG, kubectl and helm, and images; `.ci/e2e` brings all of them. tests/e2e/support/environment.py has the rest.
e2e: $(VENV)/.installed java
	$(BIN)/pytest tests/e2e -m e2e $(PYTEST_ARGS)

images:
	docker/images "$(IMAGE)"

try-kubernetes:
	IMAGE="$(IMAGE)" docker/try-kubernetes

# What a release would have, for the repository that CI names, else that of mkdocs.yml: docs/releases.md.
REPOSITORY ?= $(or $(GITHUB_REPOSITORY),$(shell sed -n 's,^repo_url: https://github.com/,,p' mkdocs.yml))
release-check: $(VENV)/.installed $(BIN)/actionlint
	$(BIN)/actionlint
	$(BIN)/python -m release arm64
	rm -rf build/release
	$(BIN)/python -m release make $(REPOSITORY) build/release

ACTIONLINT := 1.7.12
$(BIN)/actionlint: | $(VENV)/.installed
	@command -v go >/dev/null || { echo "go not found: actionlint, which checks the workflows, is built with it; apt-get install golang-go" >&2; exit 1; }
	GOBIN="$(CURDIR)/$(BIN)" go install github.com/rhysd/actionlint/cmd/actionlint@v$(ACTIONLINT)

# What the next release would say; and the section of CHANGELOG.md, of the fragments in changes/, which go.
changes: $(VENV)/.installed
	@$(BIN)/towncrier build --draft --version $(VERSION)

changelog: $(VENV)/.installed
	$(BIN)/towncrier build --yes --version $(VERSION)

lint: $(VENV)/.installed
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo 2>&1 | tail -n 20; exit $${PIPESTATUS[0]}
	$(BIN)/python -m tests.english

docs: $(VENV)/.installed
	$(BIN)/bookie config docs > docs/configuration.md
	$(BIN)/python -m bookie_operator.crds.generate
	$(BIN)/python charts/generate.py
	$(BIN)/python -m website.reference

lock: $(VENV)/.installed
	$(COMPILE) --extra dev --extra bookie --extra operator --extra spark --extra iceberg --extra otel pyproject.toml -o requirements.lock
	$(COMPILE) --extra bookie --extra operator --extra otel --constraints requirements.lock pyproject.toml -o requirements-runtime.lock
	$(COMPILE) --extra bookie --extra operator --extra spark --extra iceberg --extra otel --constraints requirements.lock pyproject.toml -o requirements-spark.lock
	$(COMPILE) --extra kerberos --constraints requirements.lock pyproject.toml -o requirements-kerberos.lock
	echo 'setuptools>=77' | $(COMPILE) --constraints requirements.lock - -o requirements-build.lock
	echo 'pandas>=2.2' | $(COMPILE) --no-deps --constraints requirements.lock - -o requirements-connect.lock
	$(COMPILE) --group site -o requirements-site.lock

# The documentation site in build/site; a link, an anchor or a page that it lacks is an error. SITE_VERSION=0.1 commits it as that
# version, the latest one, to the branch gh-pages.
SITE_VERSION ?=
SITE    := $(VENV)/site
WITH    := PATH="$(CURDIR)/$(SITE)/bin:$$PATH" NO_MKDOCS_2_WARNING=1
site: $(SITE)/.installed
	$(BIN)/python -m website.stage build/pages
	$(if $(SITE_VERSION),$(WITH) mike deploy --update-aliases $(SITE_VERSION) latest && $(WITH) mike set-default latest,$(WITH) mkdocs build -q)

bench: $(VENV)/.installed java
	$(BIN)/python -m benchmarks.compare $(BENCH_ARGS)

java:
	@command -v java >/dev/null || { echo "java not found: the tests run a real ZooKeeper; apt-get install openjdk-17-jre-headless" >&2; exit 1; }

# By uv, which takes half of pip's time; where it gets nothing, since it does not know pip's settings, by pip. PySpark is
# built from its sources: to compress its 400 MB of jars, which are compressed already, would take longer than all the rest.
$(VENV)/.installed: requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer not found: apt-get install python3.11 python3.11-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11: apt-get install python3.11 python3.11-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || { echo "Python's venv module is missing: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r <(sed -n '/^uv==/,/[^\\]$$/p' requirements.lock)
	@$(BIN)/uv pip install -q --system-certs --python $(BIN)/python --require-hashes \
	    --config-settings-package "pyspark:--build-option=--compression=stored" -r requirements.lock 2>$(VENV)/uv.log || \
	  $(BIN)/pip install -q --disable-pip-version-check --no-compile --require-hashes -r requirements.lock
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

$(SITE)/.installed: $(VENV)/.installed requirements-site.lock
	$(BIN)/uv venv -q --clear --python $(BIN)/python $(SITE)
	$(BIN)/uv pip install -q --system-certs --python $(SITE)/bin/python --require-hashes -r requirements-site.lock
	touch $@

# Kerberos is compiled, so only what tests it has it.
$(VENV)/.kerberos: $(VENV)/.installed requirements-kerberos.lock
	@command -v krb5-config >/dev/null && test -x /usr/sbin/krb5kdc || { echo "Kerberos not found: apt-get install libkrb5-dev krb5-kdc krb5-admin-server" >&2; exit 1; }
	$(BIN)/pip install -q --disable-pip-version-check --require-hashes --no-build-isolation -r requirements-kerberos.lock
	touch $@

# etcd and its commands, of the Go modules that tests/etcd/go.mod names.
ETCD_COMMANDS := etcd=server/v3 etcdctl=etcdctl/v3 etcdutl=etcdutl/v3
$(ETCD_NEWER): tests/etcd/go.mod tests/etcd/go.sum
	@command -v go >/dev/null || { echo "go not found: this etcd is built with it; apt-get install golang-go" >&2; exit 1; }
	for each in $(ETCD_COMMANDS); do \
	  go build -C tests/etcd -mod=readonly -o "$(CURDIR)/$@.new/$${each%=*}" go.etcd.io/etcd/$${each#*=} || exit; \
	done
	rm -rf $@ && mv $@.new $@
	touch $@

# pandas has a folder of its own: where it is installed, pyarrow imports it in every process, which takes a second.
$(VENV)/connect: $(VENV)/.installed requirements-connect.lock
	rm -rf $@ $@.new
	$(BIN)/pip install -q --disable-pip-version-check --require-hashes --no-deps --target $@.new -r requirements-connect.lock
	mv $@.new $@
	touch $@

# Once in a clone, beside the linters, which leave a processor alone: workers that begin together would each compile all.
# `make run` needs little of it, and has that compiled when it is imported.
$(VENV)/.compiled: $(VENV)/.installed
	@$(BIN)/python -m compileall -q -j 0 -x '/(kubernetes/aio|tests?)/' $(VENV)/lib >/dev/null || true  # some packages have templates
	@$(BIN)/python -m compileall -q podkeeper bookie_protocol bookie_client bookie_pod operator pyspark_bookie
	@$(BIN)/pytest --collect-only -qq -p no:cacheprovider tests >/dev/null || true
	@touch $@

# The same of Spark's classes; without them its Java starts more slowly, which is no fault.
$(VENV)/.classes: $(VENV)/.installed $(VENV)/.compiled
	@$(BIN)/python -m tests.support.spark_classes >/dev/null 2>$(VENV)/spark-classes.log || tail -n 3 $(VENV)/spark-classes.log
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info

SHELL := /bin/bash

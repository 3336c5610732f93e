"""Rules between keys: each names key, value and rule."""

from __future__ import annotations

import pytest

from bookie_pod.config.load import read_config


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"bookiePort": "0"}, "bookiePort=0: a port between 1 and 65535"),
        ({"networkLocation": "zone-a"}, "networkLocation=zone-a: must look like /zone/rack"),
        ({"networkLocation": "/zone-a//r1"}, "networkLocation=/zone-a//r1: must look like /zone/rack"),
        ({"httpServerPort": "3181"}, "httpServerPort=3181: bookiePort has this port already"),
        ({"grpcServerPort": "8000"}, "grpcServerPort=8000: httpServerPort has this port already"),
        ({"serverWriteBufferLowWaterMark": "600000"}, "serverWriteBufferLowWaterMark=600000: must not exceed"),
        (
            {"batchClassReadRateByBytes": "1000", "numBatchClassReadWorkerThreads": "0"},
            "batchClassReadRateByBytes=1000: needs numBatchClassReadWorkerThreads of at least 1",
        ),
        ({"journalDirectories": ","}, "journalDirectories=: at least one directory"),
        ({"ledgerDirectories": "/a,/b,/a"}, "ledgerDirectories=/a,/b,/a: /a is listed more than once"),
        ({"ledgerDirectories": "/a,/b", "indexDirectories": "/c"}, "indexDirectories=/c: DbLedgerStorage needs"),
        ({"journalAlignmentSize": "1000"}, "journalAlignmentSize=1000: must be a multiple of 512"),
        ({"journalAlignmentSize": "100"}, "journalAlignmentSize=100: must be at least 512"),
        (
            {"journalAlignmentSize": "2097152", "journalPreAllocSizeMB": "1"},
            "journalAlignmentSize=2097152: must not exceed journalPreAllocSizeMB=1",
        ),
        ({"journalFormatVersionToWrite": "5"}, "journalFormatVersionToWrite=5: 6 goes together with"),
        ({"fileInfoFormatVersionToWrite": "0"}, "journalFormatVersionToWrite=6: 6 goes together with"),
        ({"journalFormatVersionToWrite": "3"}, "journalFormatVersionToWrite=3: must be at least 4"),
        (
            {"skipListArenaChunkSize": "100", "skipListArenaMaxAllocSize": "200"},
            "skipListArenaChunkSize=100: must be at least skipListArenaMaxAllocSize=200",
        ),
        (
            {"entryLogPerLedgerEnabled": "true", "useTransactionalCompaction": "true"},
            "useTransactionalCompaction=true: not together with entryLogPerLedgerEnabled",
        ),
        (
            {"memoryBudgetMb": "100", "dbStorage_writeCacheMaxSizeMb": "90"},
            "dbStorage_writeCacheMaxSizeMb=90: together with dbStorage_readAheadCacheMaxSizeMb=25",
        ),
        ({"minorCompactionInterval": "300"}, "minorCompactionInterval=300: must be at least gcWaitTime=600000"),
        ({"entryLocationCompactionInterval": "5"}, "entryLocationCompactionInterval=5: must be at least"),
        ({"majorCompactionInterval": "3600"}, "minorCompactionInterval=3600: must be less than"),
        ({"majorCompactionThreshold": "0.2"}, "minorCompactionThreshold=0.2: must be less than"),
        ({"minorCompactionThreshold": "1.5"}, "minorCompactionThreshold=1.5: must be at most 1.0"),
        ({"logSizeLimit": "1073741825"}, "logSizeLimit=1073741825: must be at most 1073741824"),
        ({"diskUsageThreshold": "1"}, "diskUsageThreshold=1: must be less than 1"),
        ({"diskUsageLwmThreshold": "0.96"}, "diskUsageLwmThreshold=0.96: must not exceed diskUsageThreshold=0.95"),
        ({"diskUsageWarnThreshold": "0.96"}, "diskUsageWarnThreshold=0.96: must not exceed"),
        (
            {"zkEnableSecurity": "true"},
            "zkEnableSecurity=true: access lists name the user that logged in, so zkAuthCredentialsPath",
        ),
        ({"authorizedRoles": "broker,proxy"}, "authorizedRoles=broker,proxy: needs bookieAuthProviderFactoryClass="),
        ({"metadataServiceTrustStorePath": "/ca"}, "metadataServiceTlsEnable=false: the files of TLS that are named"),
        (
            {"metadataServiceTlsEnable": "true", "metadataServiceKeyPath": "/key"},
            "metadataServiceCertificatePath and metadataServiceKeyPath go together",
        ),
        ({"tlsRequired": "true"}, "tlsRequired=true: needs tlsProviderFactoryClass"),
        ({"bookieAuthProviderFactoryClass": "BookieAuthZFactory"}, "bookieAuthProviderFactoryClass=org.apache"),
        (
            {"bookieAuthProviderFactoryClass": "BookieAuthZFactory", "authorizedRoles": "broker"},
            "bookieAuthProviderFactoryClass=org.apache.bookkeeper.tls.BookieAuthZFactory: needs tlsProviderFactory",
        ),
        ({"clientAuthProviderFactoryClass": "x.Y"}, "clientAuthProviderFactoryClass=x.Y: must be one of"),
        (
            {"bookieAuthProviderFactoryClass": "SASLBookieAuthProviderFactory", "saslJaasConfigFile": "/jaas"},
            "bookieAuthProviderFactoryClass=org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory: needs clientAuth",
        ),
        (
            {"clientAuthProviderFactoryClass": "SASLClientProviderFactory"},
            "clientAuthProviderFactoryClass=org.apache.bookkeeper.sasl.SASLClientProviderFactory: needs saslJaasConfig",
        ),
        (
            {"clientAuthProviderFactoryClass": "SharedToken"},
            "clientAuthProviderFactoryClass=dev.podkeeper.SharedToken: needs authTokenFile",
        ),
        (
            {"bookieAuthProviderFactoryClass": "EntryPoint", "clientAuthProviderFactoryClass": "EntryPoint"},
            "bookieAuthProviderFactoryClass=dev.podkeeper.EntryPoint: needs authProviderEntryPoint",
        ),
        ({"saslJaasClientAllowedIds": "*"}, "saslJaasClientAllowedIds=*: is not a regular expression"),
        ({"metadataServiceUri": "zk:2181"}, "metadataServiceUri=zk:2181 is refused: it has no scheme"),
        (
            {"extraServerComponents": "org.apache.bookkeeper.stream.server.StreamStorageLifecycleComponent"},
            "extraServerComponents=org.apache.bookkeeper.stream.server.StreamStorageLifecycleComponent: there is no",
        ),
        ({"bookieAuthProviderFactoryClass": "x.Y"}, "bookieAuthProviderFactoryClass=x.Y: must be one of"),
        ({"ledgerManagerFactoryClass": "x.Y"}, "ledgerManagerFactoryClass=x.Y: must be one of"),
        ({"httpServerTlsEnable": "true"}, "httpServerKeyStorePath=: a PEM file is needed"),
        ({"httpServerAuthProbes": "true"}, "httpServerAuthProbes=true: needs httpServerAuthTokenFile"),
        (
            {"enforceMinNumFaultDomainsForWrite": "true", "addEntryQuorumTimeoutSec": "-1"},
            "addEntryQuorumTimeoutSec=-1: a limit is needed with enforceMinNumFaultDomainsForWrite=true",
        ),
        ({"grpcServerTlsEnable": "true"}, "grpcServerKeyPath=: a PEM file is needed"),
        ({"grpcServerTlsClientAuthentication": "true"}, "grpcServerTlsClientAuthentication=true: needs grpcServerTls"),
        (
            {
                "grpcServerTlsEnable": "true",
                "grpcServerKeyPath": "/k",
                "grpcServerCertificatePath": "/c",
                "grpcServerTlsClientAuthentication": "true",
            },
            "grpcServerTrustStorePath=: a PEM file is needed",
        ),
        ({"ledgerStorageClass": "FastStorage"}, "ledgerStorageClass=FastStorage: must be one of"),
        ({"ledgerStorageClass": "SortedLedgerStorage", "openFileLimit": "0"}, "openFileLimit=0: must be at least 1"),
    ],
)
def test_broken_rule(settings: dict[str, str], problem: str) -> None:
    found = read_config(environ={}, overrides=settings).problems
    assert any(line.startswith(problem) for line in found), found
    assert all("\n" not in line for line in found)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"bookiePort": "0", "allowEphemeralPorts": "true", "httpServerPort": "0", "grpcServerPort": "0"},
        {"httpServerPort": "3182", "grpcServerEnabled": "false"},
        {"numBatchClassReadWorkerThreads": "0"},
        {"batchClassReadRateByBytes": "1000"},
        {"journalFormatVersionToWrite": "5", "fileInfoFormatVersionToWrite": "0"},
        {"minorCompactionInterval": "0", "majorCompactionInterval": "3600"},
        {"minorCompactionThreshold": "0.9", "majorCompactionThreshold": "0"},
        {"gcWaitTime": "600000", "minorCompactionInterval": "600", "entryLocationCompactionInterval": "600"},
        {"gcWaitTime": "600000", "minorCompactionInterval": "0", "majorCompactionInterval": "600"},
        {"ledgerStorageClass": "SortedLedgerStorage", "ledgerDirectories": "/a,/b", "indexDirectories": "/c"},
        {"ledgerStorageClass": "SortedLedgerStorage", "memoryBudgetMb": "100", "dbStorage_writeCacheMaxSizeMb": "900"},
    ],
)
def test_what_breaks_no_rule_is_accepted(settings: dict[str, str]) -> None:
    assert read_config(environ={}, overrides=settings).problems == []

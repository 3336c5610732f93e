"""Identity, sockets and threads of a bookie.

Source: docs/internals/bookie-behaviour.md, sections 1.1 and 1.2. Frozen; any thread may read.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookie_pod.config.keys import INT_MAX, LONG_MAX, key


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """Identity and network"""

    bookie_port: int = key("bookiePort", 3181, at_least=0, at_most=65535)
    """TCP port of the BookKeeper protocol. 0 takes any free port and needs `allowEphemeralPorts`."""
    allow_ephemeral_ports: bool = key("allowEphemeralPorts", False)
    """Accept `bookiePort=0`. For tests: without a fixed `bookieId` a new port is a new bookie at every
    start."""
    bookie_id: str | None = key("bookieId", None)
    """Identity of this bookie in cookies and ledger metadata. Unset: `<address>:<port>`. Choose it before
    the first start and never change it: the directories and all ledgers refer to it."""
    advertised_address: str | None = key("advertisedAddress", None)
    """Host name or address that clients get. Unset: the address of `listeningInterface` or of this host."""
    listening_interface: str | None = key("listeningInterface", None)
    """Network interface, such as `eth0`, to take the address from and to listen on. Unset: all interfaces."""
    network_location: str | None = key("networkLocation", None, own=True)
    """Location of this bookie, such as `/zone-a/rack-7`, outermost first. It is published with the registration,
    and placement policies of Podkeeper's clients spread ensembles by it. Unset: nothing is published."""
    use_host_name_as_bookie_id: bool = key("useHostNameAsBookieID", False)
    """Use the host name instead of the IP address in the identity. Must not be switched once data exists."""
    use_short_host_name: bool = key("useShortHostName", False)
    """Use the first label of the host name instead of the full name, with `useHostNameAsBookieID`."""
    allow_loopback: bool = key("allowLoopback", False)
    """Accept a loopback address as identity. Only for a cluster on one machine: all bookies would get one
    name."""
    max_frame_size_bytes: int = key("nettyMaxFrameSizeBytes", 5_253_120, at_least=1024, at_most=INT_MAX)
    """Largest frame that is accepted, in bytes; one of version 3 may be longer by its head, so that every entry can be
    copied. An entry may be this long less 500 bytes. Must not be
    smaller than what clients of this cluster use: the default is what Apache Pulsar's brokers send at most, where
    Apache BookKeeper's own is 5242880."""
    max_batch_read_size_bytes: int = key("maxBatchReadSize", 5_242_880, at_least=1, at_most=INT_MAX)
    """Upper limit of one answer to a batch read, in bytes."""
    tcp_no_delay: bool = key("serverTcpNoDelay", True)
    """Turn Nagle's algorithm off on client connections."""
    sock_keepalive: bool = key("serverSockKeepalive", True)
    """Send TCP keep-alives on client connections."""
    tcp_keep_idle_seconds: int = key("serverTcpKeepIdle", -1, at_least=-1, at_most=32_767)
    """Seconds without traffic after which the first keep-alive is sent on a client connection. 0 or less: as the system
    has it."""
    tcp_keep_interval_seconds: int = key("serverTcpKeepIntvl", -1, at_least=-1, at_most=32_767)
    """Seconds between two keep-alives that are not answered. 0 or less: as the system has it."""
    tcp_keep_count: int = key("serverTcpKeepCnt", -1, at_least=-1, at_most=127)
    """Keep-alives without an answer after which a client connection is given up. 0 or less: as the system has it."""
    tcp_linger_seconds: int = key("serverTcpLinger", 0, at_least=-1, at_most=65535, no_effect=True)
    """SO_LINGER of client connections, in seconds. Has no effect here: connections close in the background, because
    a close that waits would hold up every other connection."""
    write_buffer_low_water_mark_bytes: int = key("serverWriteBufferLowWaterMark", 393_216, at_least=0, at_most=INT_MAX)
    """A connection's output buffer below which reading from that connection resumes, in bytes."""
    write_buffer_high_water_mark_bytes: int = key(
        "serverWriteBufferHighWaterMark", 524_288, at_least=1, at_most=INT_MAX
    )
    """A connection's output buffer above which reading from that connection stops, in bytes."""
    max_connections: int = key("maxConnections", 0, at_least=0, at_most=INT_MAX, own=True)
    """Connections at the same time; more are closed at once. 0: half of the file descriptors that this process may have
    (`ulimit -Hn`), or all but 32768 of them, less what the ports of gRPC and HTTP may take, so that files can be opened
    whatever clients do."""
    max_adds_in_progress: int = key("maxAddsInProgressLimit", 0, at_least=0, at_most=INT_MAX)
    """Adds that may wait for their answer at the same time, all connections together. 0: no limit of this
    kind; the byte limits of the journal and of the caches still hold."""
    max_reads_in_progress: int = key("maxReadsInProgressLimit", 0, at_least=0, at_most=INT_MAX)
    """Reads that may wait for their answer at the same time, all connections together. 0: no limit of this
    kind."""
    response_backpressure_timeout_ms: int = key("waitTimeoutOnResponseBackpressureMs", -1, at_least=-1)
    """Time for which a peer may not receive, in ms, before `closeChannelOnResponseTimeout` decides. -1: for ever."""
    close_channel_on_response_timeout: bool = key("closeChannelOnResponseTimeout", False)
    """Close a connection when `waitTimeoutOnResponseBackpressureMs` has passed; else its answers are
    dropped."""
    slow_request_ms: int = key("slowRequestMs", 1000, at_least=0, at_most=INT_MAX, own=True)
    """Log adds and reads that take at least this long, in ms, with the address of their client, ledger, entry and
    transaction id, by which an error of the client is found. 0: none."""
    client_memory_mb: int = key("clientMemoryMb", 0, at_least=0, at_most=INT_MAX, own=True)
    """Memory that clients may make this process hold, in MiB, over its own port, gRPC and HTTP: frames and messages
    that are not complete or not dealt with, and answers that are being made or not taken. No client gets more of it
    than is left for the others, and large entries are received in turn; when it is exceeded, those lose their
    connection that have not moved for longest. 0: half of `memoryBudgetMb`."""
    read_worker_threads_throttling: bool = key("readWorkerThreadsThrottlingEnabled", True, no_effect=True)
    """Do not read ahead of a connection that does not take its answers. Has no effect here: it is always so."""
    request_timer_tick_ms: int = key("requestTimerTickDurationMs", 10, at_least=1, at_most=INT_MAX, no_effect=True)
    """Granularity of long-poll time-outs, in ms. Has no effect here: the event loop keeps the timers."""
    request_timer_ticks: int = key("requestTimerNumTicks", 1024, at_least=1, at_most=INT_MAX, no_effect=True)
    """Slots of the long-poll timer wheel. Has no effect here: the event loop keeps the timers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadsConfig:
    """Threads and queues"""

    io_threads: int = key("serverNumIOThreads", 4, at_least=1, at_most=4096, derived="2 x CPU cores", no_effect=True)
    """Threads that serve sockets. Has no effect here: one event loop serves all of them."""
    acceptor_threads: int = key("serverNumAcceptorThreads", 1, at_least=1, at_most=4096, no_effect=True)
    """Threads that accept connections. Has no effect here: the event loop accepts."""
    add_workers: int = key("numAddWorkerThreads", 1, at_least=0, at_most=4096)
    """The event loop handles adds in batches; this many times `maxPendingAddRequestsPerThread` may wait. 0: once."""
    read_workers: int = key("numReadWorkerThreads", 8, at_least=0, at_most=4096)
    """Threads that read entries which no cache holds from disk. 0: one."""
    long_poll_workers: int = key("numLongPollWorkerThreads", 0, at_least=0, at_most=4096)
    """Threads that read the entries of answered long polls from disk. 0: those of `numReadWorkerThreads`. While it
    waits, a long poll costs no thread."""
    high_priority_workers: int = key("numHighPriorityWorkerThreads", 8, at_least=0, at_most=4096)
    """Threads that read entries for recovery from disk, so that they do not queue behind other reads. 0: one. Adds of
    recovery and fencing need none."""
    batch_class_read_workers: int = key("numBatchClassReadWorkerThreads", 1, at_least=0, at_most=4096, own=True)
    """Threads that read entries for clients of the traffic class `batch`: Spark's source and jobs, and any client
    whose option `traffic_class` says so. While other clients wait for the disks these threads go at a tenth of their
    speed, but no read gives way for more than a second. 0: those of `numReadWorkerThreads`, without giving way."""
    batch_class_read_rate_bytes: int = key("batchClassReadRateByBytes", 0, at_least=0, at_most=LONG_MAX, own=True)
    """Bytes per second that clients of the traffic class `batch` read at most, all of them together. 0: no limit. Needs
    `numBatchClassReadWorkerThreads` of at least 1."""
    max_pending_adds_per_thread: int = key("maxPendingAddRequestsPerThread", 10_000, at_least=0, at_most=INT_MAX)
    """Adds that may wait per add worker; beyond, the answer is TOO_MANY_REQUESTS. A connection that holds as many of
    them as are left for the others is not read for a while. 0: no limit."""
    max_pending_reads_per_thread: int = key("maxPendingReadRequestsPerThread", 10_000, at_least=0, at_most=INT_MAX)
    """Reads that may wait per read worker, of each kind; beyond, the answer is TOO_MANY_REQUESTS. 0: no limit."""
    journal_callback_threads: int = key("numJournalCallbackThreads", 1, at_least=-1, at_most=4096, no_effect=True)
    """Has no effect, as in the reference implementation."""
    busy_wait: bool = key("enableBusyWait", False, no_effect=True)
    """Spin instead of sleeping. Has no effect here: threads wait for events."""

    @property
    def max_pending_adds(self) -> int:
        """Adds that may wait for room, over all connections; 0: no limit."""
        return self.max_pending_adds_per_thread * max(1, self.add_workers)

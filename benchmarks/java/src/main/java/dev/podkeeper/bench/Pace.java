package dev.podkeeper.bench;

import java.util.concurrent.locks.LockSupport;

/**
 * Says when the next request is due and when the run is over. Used by the sending thread only.
 *
 * <p>With a rate, a request's latency counts from the time it was due, not from the time it was sent: a stall is charged to
 * every request that had to wait for it (no coordinated omission). The schedule starts anew when the measured time begins, and
 * during the warm-up whenever it is {@link #WARMUP_LAG_NANOS} behind: what a client that is still being compiled could not
 * send is nobody's latency.
 */
final class Pace {

    private static final long WARMUP_LAG_NANOS = 20_000_000;

    private final Options options;
    private final Meter meter;
    private long scheduleNanos = System.nanoTime();
    private final long beginNanos;
    private final long endNanos;
    private long requests;
    private boolean begun;

    Pace(Options options, Meter meter) {
        this.options = options;
        this.meter = meter;
        boolean counted = options.entries > 0;
        this.beginNanos = scheduleNanos + (counted ? 0 : options.warmup * 1_000_000_000L);
        this.endNanos = counted ? Long.MAX_VALUE : beginNanos + options.duration * 1_000_000_000L;
        beginWhenDue(scheduleNanos);
    }

    /** Waits for the next request's turn. Returns its time (nanoTime), or -1 when the run is over. */
    long next() {
        long now = System.nanoTime();
        beginWhenDue(now);
        if (now >= endNanos || meter.hasFailed()) {
            return -1;
        }
        if (options.rate == 0) {
            return now;
        }
        long due = scheduleNanos + (long) (requests++ * (1e9 / options.rate));
        if (!begun && now - due > WARMUP_LAG_NANOS) {
            due = restart(now);
        }
        while (due > now) {
            LockSupport.parkNanos(due - now);
            now = System.nanoTime();
        }
        return due;
    }

    private long restart(long now) {
        scheduleNanos = now;
        requests = 1;
        return now;
    }

    private void beginWhenDue(long now) {
        if (!begun && now >= beginNanos) {
            begun = true;
            restart(now);
            meter.begin();
        }
    }
}

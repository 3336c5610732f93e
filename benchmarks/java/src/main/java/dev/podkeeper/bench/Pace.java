package dev.podkeeper.bench;

import java.util.concurrent.locks.LockSupport;

/**
 * Says when the next request is due and when the run is over. Used by the sending thread only.
 *
 * <p>With a rate, a request's latency counts from the time it was due, not from the time it was sent: a stall is charged to
 * every request that had to wait for it (no coordinated omission).
 */
final class Pace {

    private final Options options;
    private final Meter meter;
    private final long startNanos = System.nanoTime();
    private final long beginNanos;
    private final long endNanos;
    private long requests;
    private boolean begun;

    Pace(Options options, Meter meter) {
        this.options = options;
        this.meter = meter;
        boolean counted = options.entries > 0;
        this.beginNanos = startNanos + (counted ? 0 : options.warmup * 1_000_000_000L);
        this.endNanos = counted ? Long.MAX_VALUE : beginNanos + options.duration * 1_000_000_000L;
        beginWhenDue(startNanos);
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
        long due = startNanos + (long) (requests++ * (1e9 / options.rate));
        while (due > now) {
            LockSupport.parkNanos(due - now);
            now = System.nanoTime();
        }
        return due;
    }

    private void beginWhenDue(long now) {
        if (!begun && now >= beginNanos) {
            begun = true;
            meter.begin();
        }
    }
}

package dev.podkeeper.bench;

import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

/**
 * Bounds the requests in flight of one sending thread.
 *
 * <p>The sender is woken once per sixteenth of the window, not once per answer: a wake-up costs more than a request, and would
 * be charged to the client's side of the comparison. A window below 16 is exact.
 */
final class Window {

    private final int size;
    private final int step;
    private final AtomicLong answered = new AtomicLong();
    private final Thread sender;
    private volatile long wakeAt = Long.MAX_VALUE;
    private long sent;

    /** The calling thread becomes the sender. */
    Window(int size) {
        this.size = size;
        this.step = Math.max(1, size / 16);
        this.sender = Thread.currentThread();
    }

    /** Sender: waits until the window has room, then counts one request. */
    void acquire() {
        if (sent - answered.get() >= size) {
            waitFor(sent - size + step);
        }
        sent++;
    }

    /** Sender: waits until everything sent was answered. */
    void drain() {
        waitFor(sent);
    }

    /** Any thread: one request was answered. */
    void release() {
        long now = answered.incrementAndGet();
        if (now >= wakeAt) {
            LockSupport.unpark(sender);
        }
    }

    private void waitFor(long count) {
        wakeAt = count;
        while (answered.get() < count) {
            LockSupport.parkNanos(this, 1_000_000_000L);
        }
        wakeAt = Long.MAX_VALUE;
    }
}

package dev.podkeeper.bench;

import java.nio.ByteBuffer;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Phaser;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.ReadHandle;

/**
 * A writer with a fixed schedule and a reader that tails its ledger by long polls; latency is from the moment an entry was
 * due until the reader has it.
 */
final class TailLoad {

    private static final long LONG_POLL_MILLIS = 5_000;

    private final Options options;
    private final BookKeeper client;
    private final Meter meter;

    TailLoad(Options options, BookKeeper client, Meter meter) {
        this.options = options;
        this.client = client;
        this.meter = meter;
    }

    void run() throws Exception {
        LedgerHandle writer = client.createLedger(
                options.ensemble, options.writeQuorum, options.ackQuorum, options.digest, AddLoad.PASSWORD);
        CountDownLatch read = new CountDownLatch(1);
        Thread reader = new Thread(() -> {
            try (ReadHandle handle = client.newOpenLedgerOp().withLedgerId(writer.getId())
                    .withPassword(AddLoad.PASSWORD).withRecovery(false).execute().get()) {
                follow(handle);
            } catch (Exception e) {
                meter.failed("tail: " + e);
            } finally {
                read.countDown();
            }
        }, "tail");
        reader.start();
        Pace pace = new Pace(options, meter);
        ByteBuffer payload = ByteBuffer.allocate(Math.max(options.size, Long.BYTES));
        Phaser pending = new Phaser(1);
        for (long since = pace.next(); since >= 0; since = pace.next()) {
            payload.putLong(0, since);
            pending.register();
            writer.asyncAddEntry(payload.array().clone(), (rc, handle, entryId, context) -> {
                if (rc != BKException.Code.OK) {
                    meter.failed("add: " + BKException.getMessage(rc));
                }
                pending.arriveAndDeregister();
            }, null);
        }
        meter.end();
        // Closing fails what is pending.
        pending.arriveAndAwaitAdvance();
        writer.close();
        read.await();
        client.deleteLedger(writer.getId());
    }

    private void follow(ReadHandle handle) throws Exception {
        long next = 0;
        while (!(handle.isClosed() && next > handle.getLastAddConfirmed())) {
            if (next <= handle.getLastAddConfirmed()) {
                try (var entries = handle.read(next, handle.getLastAddConfirmed())) {
                    for (var entry : entries) {
                        taken(entry.getEntryBytes());
                        next++;
                    }
                }
                continue;
            }
            try (var polled = handle.readLastAddConfirmedAndEntry(next, LONG_POLL_MILLIS, false)) {
                if (polled.hasEntry()) {
                    taken(polled.getEntry().getEntryBytes());
                    next++;
                }
            }
        }
    }

    private void taken(byte[] payload) {
        meter.answered(ByteBuffer.wrap(payload).getLong(), 1);
    }
}

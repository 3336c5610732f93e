package dev.podkeeper.bench;

import java.nio.file.Path;
import java.util.Enumeration;
import java.util.List;
import java.util.Random;
import org.apache.bookkeeper.client.AsyncCallback.ReadCallback;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;

/** Reads what {@link AddLoad} left: entry by entry or in batches, in order (ledger by ledger in turn) or at random. */
final class ReadLoad {

    private static final long NO_SIZE_LIMIT = 0;

    private final Options options;
    private final BookKeeper client;
    private final Meter meter;
    private final Random random = new Random(2);

    ReadLoad(Options options, BookKeeper client, Meter meter) {
        this.options = options;
        this.client = client;
        this.meter = meter;
    }

    /** One ledger being read; {@code next} is the next entry in order, {@code pass} how often all of it was asked for. */
    private static final class Cursor {
        final LedgerHandle handle;
        final long last;
        long next;
        int pass;

        Cursor(LedgerHandle handle, long last) {
            this.handle = handle;
            this.last = last;
        }
    }

    void run() throws Exception {
        List<LedgerFile.Written> written = LedgerFile.read(Path.of(options.ledgerFile));
        options.size = written.get(0).entrySize(); // reported with the result
        options.ledgers = written.size();
        Cursor[] cursors = new Cursor[written.size()];
        for (int i = 0; i < cursors.length; i++) {
            long id = written.get(i).ledgerId();
            cursors[i] = new Cursor(client.openLedgerNoRecovery(id, options.digest, AddLoad.PASSWORD),
                    written.get(i).lastEntryId());
        }
        Window window = new Window(options.window);
        ReadCallback done = (rc, handle, entries, since) -> {
            if (rc == BKException.Code.OK) {
                meter.answered((Long) since, release(entries));
            } else {
                meter.failed("read of ledger " + handle.getId() + ": " + BKException.getMessage(rc));
            }
            window.release();
        };
        Pace pace = new Pace(options, meter);
        long read = 0;
        for (int i = 0, live = cursors.length; live > 0; i = (i + 1) % cursors.length) {
            Cursor cursor = cursors[i];
            if (cursor.pass >= options.passes) {
                continue;
            }
            window.acquire();
            long since = pace.next();
            if (since < 0 || options.entries > 0 && read >= options.entries) {
                window.release();
                break;
            }
            read += request(cursor, since, done);
            if (cursor.pass >= options.passes) {
                live--;
            }
        }
        boolean cutOff = options.passes == Integer.MAX_VALUE && options.entries == 0;
        if (cutOff) {
            meter.end();
        }
        window.drain();
        if (!cutOff) {
            meter.end();
        }
        for (Cursor cursor : cursors) {
            cursor.handle.close();
        }
    }

    private long request(Cursor cursor, long since, ReadCallback done) {
        int want = options.readKind.equals("single") ? 1 : options.batch;
        boolean ordered = options.order.equals("sequential");
        long first = ordered ? cursor.next : random.nextLong(cursor.last + 1);
        long last = Math.min(cursor.last, first + want - 1);
        if (want > 1 && options.protocol.equals("v2")) {
            cursor.handle.asyncBatchReadEntries(first, (int) (last - first + 1), NO_SIZE_LIMIT, done, since);
        } else {
            cursor.handle.asyncReadEntries(first, last, done, since);
        }
        cursor.next += last - first + 1;
        if (cursor.next > cursor.last) {
            cursor.next = 0;
            cursor.pass++;
        }
        return last - first + 1;
    }

    private static int release(Enumeration<LedgerEntry> entries) {
        int count = 0;
        for (; entries.hasMoreElements(); count++) {
            entries.nextElement().getEntryBuffer().release();
        }
        return count;
    }
}

package dev.podkeeper.bench;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.apache.bookkeeper.client.AsyncCallback.AddCallback;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;

/** Appends entries to several ledgers in turn. */
final class AddLoad {

    static final byte[] PASSWORD = "bench".getBytes(java.nio.charset.StandardCharsets.US_ASCII);

    private final Options options;
    private final BookKeeper client;
    private final Meter meter;

    AddLoad(Options options, BookKeeper client, Meter meter) {
        this.options = options;
        this.client = client;
        this.meter = meter;
    }

    void run() throws Exception {
        byte[] payload = new byte[options.size];
        new Random(1).nextBytes(payload); // incompressible, the same in each run
        LedgerHandle[] ledgers = new LedgerHandle[options.ledgers];
        for (int i = 0; i < ledgers.length; i++) {
            ledgers[i] = client.createLedger(
                    options.ensemble, options.writeQuorum, options.ackQuorum, options.digest, PASSWORD);
        }
        Window window = new Window(options.window);
        AddCallback done = (rc, handle, entryId, since) -> {
            if (rc == BKException.Code.OK) {
                meter.answered((Long) since, 1);
            } else {
                meter.failed("add to ledger " + handle.getId() + ": " + BKException.getMessage(rc));
            }
            window.release();
        };
        Pace pace = new Pace(options, meter);
        for (long i = 0; options.entries == 0 || i < options.entries; i++) {
            // The window first: with a rate, time spent here belongs to the latency of what is already due.
            window.acquire();
            long since = pace.next();
            if (since < 0) {
                window.release();
                break;
            }
            ledgers[(int) (i % ledgers.length)].asyncAddEntry(payload, done, since);
        }
        if (options.entries == 0) {
            meter.end(); // what is in flight now was never a full window's worth of load
            window.drain();
        } else {
            window.drain();
            meter.end();
        }
        finish(ledgers);
    }

    private void finish(LedgerHandle[] ledgers) throws Exception {
        List<LedgerFile.Written> written = new ArrayList<>();
        for (LedgerHandle ledger : ledgers) {
            if (meter.hasFailed()) {
                continue; // its state is unknown; the run is reported as failed anyway
            }
            ledger.close();
            written.add(new LedgerFile.Written(ledger.getId(), ledger.getLastAddConfirmed(), options.size));
            if (options.ledgerFile == null) {
                client.deleteLedger(ledger.getId());
            }
        }
        if (options.ledgerFile != null) {
            LedgerFile.write(Path.of(options.ledgerFile), written);
        }
    }
}

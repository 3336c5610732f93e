package dev.podkeeper.bench;

import java.nio.file.Path;
import java.util.List;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;

/**
 * Opens with recovery each ledger that a file names, once; latency is from the call until the ledger is closed and its handle
 * there. The first ledgers are not measured, but for the very first: what that took is told on its own, as {@code first_ms}.
 */
final class RecoverLoad {

    private final Options options;
    private final BookKeeper client;
    private final Meter meter;

    RecoverLoad(Options options, BookKeeper client, Meter meter) {
        this.options = options;
        this.client = client;
        this.meter = meter;
    }

    void run() throws Exception {
        List<LedgerFile.Written> ledgers = LedgerFile.read(Path.of(options.ledgerFile));
        long began = System.nanoTime();
        recover(ledgers.subList(0, 1));
        meter.note("first_ms", (System.nanoTime() - began) / 1e6);
        recover(ledgers.subList(1, options.warmupLedgers));
        meter.begin();
        recover(ledgers.subList(options.warmupLedgers, ledgers.size()));
        meter.end();
    }

    /** {@code --window} of them at a time; an end other than that of the file is a failure. */
    private void recover(List<LedgerFile.Written> ledgers) {
        Window window = new Window(options.window);
        for (LedgerFile.Written ledger : ledgers) {
            window.acquire();
            long since = System.nanoTime();
            client.asyncOpenLedger(ledger.ledgerId(), options.digest, AddLoad.PASSWORD, (rc, handle, context) -> {
                if (rc != BKException.Code.OK) {
                    meter.failed("recovery of ledger " + ledger.ledgerId() + ": " + BKException.getMessage(rc));
                } else if (handle.getLastAddConfirmed() != ledger.lastEntryId()) {
                    meter.failed("ledger " + ledger.ledgerId() + " ends at " + handle.getLastAddConfirmed()
                            + " instead of " + ledger.lastEntryId());
                } else {
                    meter.answered(since, 1);
                    handle.asyncClose((closed, same, nothing) -> {}, null);
                }
                window.release();
            }, null);
        }
        window.drain();
    }
}

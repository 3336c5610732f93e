package dev.podkeeper.interop;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.api.BKException.Code;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.util.ByteBufList;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Several consecutive entries in one answer: opcode 7 of protocol v2, for ensembles as large as the write quorum. */
class BatchReadTest extends ClientTest {

    private static final int SIZE = 1000;
    private static final long LAST = 499;
    private static final int STORED = 32 + 4 + SIZE; // ids, LAC and length; CRC32C; payload

    private long ledger;
    private BookieId bookie;

    @BeforeAll
    void write() throws Exception {
        WriteHandle writer = Setting.create(client(Protocol.V2), 1, 1, 1);
        Setting.append(writer, 0, LAST, SIZE);
        writer.close();
        ledger = writer.getId();
        bookie = Setting.only(writer.getLedgerMetadata().getAllEnsembles().get(0L));
    }

    /** Entries that one request brings, or the client's code as a negative number. */
    private int batch(long first, int count, long bytes) throws Exception {
        CompletableFuture<Integer> done = new CompletableFuture<>();
        raw().of(Protocol.V2).batchReadEntries(bookie, ledger, first, count, bytes,
                (rc, ledgerId, startEntryId, list, ctx) -> done.complete(rc == Code.OK ? sizeAndRelease(list) : rc), null, 0);
        return done.get(20, TimeUnit.SECONDS);
    }

    private static int sizeAndRelease(ByteBufList list) {
        int size = list.size();
        list.release();
        return size;
    }

    @Test
    void theClientReadsALedgerInBatches() throws Exception {
        try (ReadHandle reader = Setting.open(client(Protocol.V2), ledger, false)) {
            long next = 0;
            int answers = 0;
            while (next <= LAST) {
                try (LedgerEntries entries = reader.batchRead(next, 64, 0)) {
                    for (LedgerEntry entry : entries) {
                        assertEquals(next, entry.getEntryId());
                        assertArrayEquals(Setting.payload(ledger, next, SIZE), entry.getEntryBytes());
                        next++;
                    }
                }
                answers++;
            }
            assertEquals(8, answers, "500 entries in batches of 64");
        }
    }

    @Test
    void countAndSizeBothLimitABatch() throws Exception {
        assertEquals(10, batch(0, 10, 1 << 20));
        assertEquals(9, batch(0, 100, 36 + 9 * (STORED + 4)), "as many as fit into the frame");
        assertEquals(8, batch(0, 100, 36 + 9 * (STORED + 4) - 1));
        assertEquals(1, batch(0, 100, 1), "one at least");
        assertEquals(1, batch(0, 100, 0), "one at least");
        assertEquals(500, batch(0, 0, 1 << 20), "no limit of the count");
    }

    @Test
    void aBatchEndsWhereTheLedgerEnds() throws Exception {
        assertEquals(5, batch(LAST - 4, 100, 1 << 20));
        assertEquals(Code.NoSuchEntryException, batch(LAST + 1, 100, 1 << 20));
    }

    @Test
    void aBatchOfLargeEntriesStaysBelowTheFrameLimit() throws Exception {
        int large = 1_500_000;
        WriteHandle writer = Setting.create(client(Protocol.V2), 3, 3, 2);
        Setting.append(writer, 0, 7, large);
        writer.close();
        try (ReadHandle reader = Setting.open(client(Protocol.V2), writer.getId(), true)) {
            long next = 0;
            while (next <= 7) {
                try (LedgerEntries entries = reader.batchRead(next, 8, 5 * 1024 * 1024)) {
                    int got = 0;
                    for (LedgerEntry entry : entries) {
                        assertArrayEquals(Setting.payload(writer.getId(), next, large), entry.getEntryBytes());
                        next++;
                        got++;
                    }
                    assertTrue(got >= 1 && got <= 3, got + " entries of 1.5 MB in one answer");
                }
            }
        }
    }
}

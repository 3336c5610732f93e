package dev.podkeeper.interop;

import java.util.List;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.api.BKException.Code;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.net.BookieId;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** A ledger whose writer went away without closing it. */
class RecoveryTest extends ClientTest {

    private static final int SIZE = 120;

    @ParameterizedTest
    @EnumSource(Protocol.class)
    void anAbandonedLedgerIsClosedAtItsLastEntry(Protocol protocol) throws Exception {
        // It is closed in the end: the stock client can fail in its own close() while answers are on their way to it.
        try (BookKeeper gone = Setting.client(protocol)) {
            WriteHandle writer = Setting.create(gone, 3, 2, 2);
            long ledger = writer.getId();
            Setting.append(writer, 0, 499, SIZE);
            try (ReadHandle open = Setting.open(client(protocol), ledger, false)) {
                assertFalse(open.isClosed());
            }
            try (ReadHandle reader = Setting.open(client(protocol), ledger, true)) {
                assertTrue(reader.isClosed());
                assertEquals(499, reader.getLastAddConfirmed());
                assertEquals(500L * SIZE, reader.getLength());
                Setting.verify(reader, 0, 499, SIZE);
            }
            try (ReadHandle again = Setting.open(client(protocol), ledger, true)) {
                assertEquals(499, again.getLastAddConfirmed());
            }
        }
    }

    @ParameterizedTest
    @EnumSource(Protocol.class)
    void anEntryThatReachedOneBookieIsWrittenToTheOthers(Protocol protocol) throws Exception {
        WriteHandle writer = Setting.create(client(protocol), 3, 3, 3);
        Setting.append(writer, 0, 9, SIZE);
        long ledger = writer.getId();
        List<BookieId> ensemble = writer.getLedgerMetadata().getAllEnsembles().get(0L);
        // Recovery trusts the length in the entry's header; this one says SIZE, not the sum.
        assertEquals(Code.OK, raw().add(protocol, ensemble.get(1), ledger, 10, 9, Setting.payload(ledger, 10, SIZE)));
        assertEquals(Code.NoSuchEntryException, raw().read(protocol, ensemble.get(0), ledger, 10));
        try (ReadHandle reader = Setting.open(client(protocol), ledger, true)) {
            assertEquals(10, reader.getLastAddConfirmed());
            Setting.verify(reader, 0, 10, SIZE);
        }
        for (BookieId bookie : ensemble) {
            assertEquals(Code.OK, raw().read(protocol, bookie, ledger, 10), "entry 10 at " + bookie);
        }
    }

    @ParameterizedTest
    @EnumSource(Protocol.class)
    void aLedgerWithoutEntriesIsClosedEmpty(Protocol protocol) throws Exception {
        WriteHandle writer = Setting.create(client(protocol), 3, 2, 2);
        try (ReadHandle reader = Setting.open(client(protocol), writer.getId(), true)) {
            assertTrue(reader.isClosed());
            assertEquals(-1, reader.getLastAddConfirmed());
        }
    }
}

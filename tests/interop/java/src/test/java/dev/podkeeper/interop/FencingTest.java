package dev.podkeeper.interop;

import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.api.BKException.Code;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.BookieProtocol;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** A recovering reader shuts the writer out. */
class FencingTest extends ClientTest {

    private static final int SIZE = 80;
    private static final int RECOVERY = BookieProtocol.FLAG_RECOVERY_ADD | BookieProtocol.FLAG_HIGH_PRIORITY;

    @ParameterizedTest
    @EnumSource(Protocol.class)
    void theWriterIsFencedAndNothingAcknowledgedIsLost(Protocol protocol) throws Exception {
        WriteHandle writer = Setting.create(client(protocol), 3, 2, 2);
        Setting.append(writer, 0, 199, SIZE);
        try (ReadHandle reader = Setting.open(client(protocol), writer.getId(), true)) {
            assertTrue(reader.isClosed());
            assertEquals(199, reader.getLastAddConfirmed());
            Setting.verify(reader, 0, 199, SIZE);
            assertFails(Code.LedgerFencedException, () -> writer.append(new byte[SIZE]));
            assertEquals(199, reader.getLastAddConfirmed());
        }
    }

    @ParameterizedTest
    @EnumSource(Protocol.class)
    void aWriterInFullSwingLosesNothingAcknowledged(Protocol protocol) throws Exception {
        WriteHandle writer = Setting.create(client(protocol), 3, 2, 2);
        CompletableFuture<Long> acknowledged = CompletableFuture.supplyAsync(() -> {
            long last = -1;
            try {
                while (true) {
                    last = writer.append(Setting.payload(writer.getId(), last + 1, SIZE));
                }
            } catch (Exception fenced) {
                return last;
            }
        });
        while (writer.getLastAddConfirmed() < 100) {
            Thread.onSpinWait();
            Thread.sleep(1);
        }
        try (ReadHandle reader = Setting.open(client(protocol), writer.getId(), true)) {
            long last = acknowledged.get();
            assertTrue(last >= 100, "the writer got on before it was fenced");
            assertTrue(reader.getLastAddConfirmed() >= last,
                    "acknowledged up to " + last + ", closed at " + reader.getLastAddConfirmed());
            Setting.verify(reader, 0, reader.getLastAddConfirmed(), SIZE);
        }
    }

    @ParameterizedTest
    @EnumSource(Protocol.class)
    void aFencedBookieTakesRecoveryAddsOnly(Protocol protocol) throws Exception {
        WriteHandle writer = Setting.create(client(protocol), 1, 1, 1);
        Setting.append(writer, 0, 1, SIZE);
        long ledger = writer.getId();
        BookieId bookie = Setting.only(writer.getLedgerMetadata().getAllEnsembles().get(0L));
        byte[] payload = Setting.payload(ledger, 2, SIZE);
        assertEquals(Code.OK, raw().fence(protocol, bookie, ledger, Setting.PASSWORD));
        assertEquals(Code.LedgerFencedException, raw().add(protocol, bookie, ledger, 2, 1, payload));
        assertEquals(Code.NoSuchEntryException, raw().read(protocol, bookie, ledger, 2));
        assertEquals(Code.OK, raw().add(protocol, bookie, Setting.PASSWORD, ledger, 2, 1, payload, RECOVERY));
        assertEquals(Code.OK, raw().read(protocol, bookie, ledger, 2));
        assertEquals(Code.OK, raw().fence(protocol, bookie, ledger, Setting.PASSWORD), "fencing twice is no error");
    }

    @ParameterizedTest
    @EnumSource(Protocol.class)
    void aLedgerCanBeFencedBeforeItsFirstEntry(Protocol protocol) throws Exception {
        WriteHandle writer = Setting.create(client(protocol), 1, 1, 1);
        BookieId bookie = Setting.only(writer.getLedgerMetadata().getAllEnsembles().get(0L));
        int code = raw().fence(protocol, bookie, writer.getId(), Setting.PASSWORD);
        assertTrue(code == Code.NoSuchEntryException || code == Code.NoSuchLedgerExistsException, "code " + code);
        assertFails(Code.LedgerFencedException, () -> writer.append(new byte[SIZE]));
        assertThrows(Exception.class, () -> writer.append(new byte[SIZE]));
    }

    @ParameterizedTest
    @EnumSource(Protocol.class)
    void fencingNeedsTheLedgersKey(Protocol protocol) throws Exception {
        WriteHandle writer = Setting.create(client(protocol), 1, 1, 1);
        Setting.append(writer, 0, 1, SIZE);
        BookieId bookie = Setting.only(writer.getLedgerMetadata().getAllEnsembles().get(0L));
        assertEquals(Code.UnauthorizedAccessException,
                raw().fence(protocol, bookie, writer.getId(), new byte[] {1, 2, 3}));
        Setting.append(writer, 2, 3, SIZE);
        writer.close();
    }
}

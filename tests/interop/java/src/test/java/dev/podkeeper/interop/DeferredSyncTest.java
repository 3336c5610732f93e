package dev.podkeeper.interop;

import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.api.BKException.Code;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.net.BookieId;
import org.junit.jupiter.api.Test;

import static org.junit.jupiter.api.Assertions.assertEquals;

/** Adds that are acknowledged before they are synced, and the force that makes them durable (protocol v3 only). */
class DeferredSyncTest extends ClientTest {

    private static final int SIZE = 90;

    private WriteHandle create(BookKeeper client) throws Exception {
        return client.newCreateLedgerOp().withEnsembleSize(3).withWriteQuorumSize(3).withAckQuorumSize(2)
                .withDigestType(DigestType.CRC32C).withPassword(Setting.PASSWORD).withWriteFlags(WriteFlag.DEFERRED_SYNC)
                .execute().get();
    }

    @Test
    void theLacMovesWithForce() throws Exception {
        try (WriteHandle writer = create(client(Protocol.V3))) {
            Setting.append(writer, 0, 99, SIZE);
            assertEquals(-1, writer.getLastAddConfirmed());
            assertEquals(99, writer.getLastAddPushed());
            writer.force().get();
            assertEquals(99, writer.getLastAddConfirmed());
            Setting.verify(writer, 0, 99, SIZE);
        }
    }

    @Test
    void closingWithoutForceLosesNothingThatWasSynced() throws Exception {
        WriteHandle writer = create(client(Protocol.V3));
        Setting.append(writer, 0, 99, SIZE);
        writer.force().get();
        writer.close();
        try (ReadHandle reader = Setting.open(client(Protocol.V3), writer.getId(), true)) {
            assertEquals(99, reader.getLastAddConfirmed());
            Setting.verify(reader, 0, 99, SIZE);
        }
    }

    @Test
    void aBookieForcesAnyLedgerItIsAskedFor() throws Exception {
        WriteHandle writer = Setting.create(client(Protocol.V3), 1, 1, 1);
        BookieId bookie = Setting.only(writer.getLedgerMetadata().getAllEnsembles().get(0L));
        byte[] payload = Setting.payload(writer.getId(), 0, SIZE);
        assertEquals(Code.OK, raw().force(bookie, writer.getId()), "nothing written yet");
        assertEquals(Code.OK, raw().addDeferred(bookie, writer.getId(), 0, -1, payload));
        assertEquals(Code.OK, raw().force(bookie, writer.getId()));
        assertEquals(Code.OK, raw().read(Protocol.V3, bookie, writer.getId(), 0));
    }
}

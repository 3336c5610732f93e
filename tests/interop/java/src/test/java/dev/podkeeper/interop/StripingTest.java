package dev.podkeeper.interop;

import java.util.List;
import org.apache.bookkeeper.client.api.BKException.Code;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.net.BookieId;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

import static org.junit.jupiter.api.Assertions.assertEquals;

/** Ensembles larger than the write quorum: each bookie holds its share and no more. */
class StripingTest extends ClientTest {

    private static final int ENSEMBLE = 3;
    private static final int WRITE_QUORUM = 2;

    @ParameterizedTest
    @EnumSource(Protocol.class)
    void entriesGoToTheirWriteSet(Protocol protocol) throws Exception {
        WriteHandle writer = Setting.create(client(protocol), ENSEMBLE, WRITE_QUORUM, WRITE_QUORUM);
        Setting.append(writer, 0, 599, 100);
        writer.close();
        try (ReadHandle reader = Setting.open(client(protocol), writer.getId(), false)) {
            Setting.verify(reader, 0, 599, 100);
        }
        List<BookieId> ensemble = writer.getLedgerMetadata().getAllEnsembles().get(0L);
        for (long entry = 0; entry < 30; entry++) {
            for (int i = 0; i < ENSEMBLE; i++) {
                boolean holds = Math.floorMod(i - entry, ENSEMBLE) < WRITE_QUORUM;
                assertEquals(holds ? Code.OK : Code.NoSuchEntryException,
                        raw().read(protocol, ensemble.get(i), writer.getId(), entry),
                        "entry " + entry + " at bookie " + i);
            }
        }
    }

    @ParameterizedTest
    @EnumSource(Protocol.class)
    void theAckQuorumMayBeSmallerThanTheWriteQuorum(Protocol protocol) throws Exception {
        WriteHandle writer = Setting.create(client(protocol), 3, 3, 2);
        Setting.append(writer, 0, 299, 100);
        writer.close();
        try (ReadHandle reader = Setting.open(client(protocol), writer.getId(), true)) {
            assertEquals(299, reader.getLastAddConfirmed());
            Setting.verify(reader, 0, 299, 100);
        }
    }
}

package dev.podkeeper.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.junit.jupiter.api.Test;

import static org.junit.jupiter.api.Assertions.assertEquals;

/** Two hundred ledgers written at once, in turn, then read. */
class ManyLedgersTest extends ClientTest {

    private static final int LEDGERS = 200;
    private static final int ENTRIES = 100;
    private static final int SIZE = 150;

    @Test
    void ledgersDoNotMix() throws Exception {
        BookKeeper client = client(Protocol.V2);
        List<CompletableFuture<WriteHandle>> creating = new ArrayList<>();
        for (int i = 0; i < LEDGERS; i++) {
            creating.add(client.newCreateLedgerOp().withEnsembleSize(2).withWriteQuorumSize(2).withAckQuorumSize(2)
                    .withDigestType(DigestType.CRC32C).withPassword(Setting.PASSWORD).execute());
        }
        List<WriteHandle> ledgers = new ArrayList<>();
        for (CompletableFuture<WriteHandle> each : creating) {
            ledgers.add(each.get());
        }
        List<CompletableFuture<Long>> adding = new ArrayList<>();
        for (int entry = 0; entry < ENTRIES; entry++) {
            for (WriteHandle ledger : ledgers) {
                adding.add(ledger.appendAsync(Setting.payload(ledger.getId(), entry, SIZE)));
            }
        }
        for (int i = 0; i < adding.size(); i++) {
            assertEquals(i / LEDGERS, adding.get(i).get());
        }
        for (CompletableFuture<Void> closing : ledgers.stream().map(WriteHandle::closeAsync).toList()) {
            closing.get();
        }
        for (WriteHandle ledger : ledgers) {
            try (ReadHandle reader = Setting.open(client(Protocol.V3), ledger.getId(), false)) {
                assertEquals(ENTRIES - 1, reader.getLastAddConfirmed());
                Setting.verify(reader, 0, ENTRIES - 1, SIZE);
            }
        }
    }
}

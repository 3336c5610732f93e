package dev.podkeeper.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.api.BKException.Code;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteAdvHandle;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

import static org.junit.jupiter.api.Assertions.assertEquals;

/** LedgerHandleAdv: the writer chooses entry ids, and sends them in any order. */
class ExplicitEntryIdsTest extends ClientTest {

    private static final int SIZE = 70;

    private WriteAdvHandle create(BookKeeper client) throws Exception {
        return client.newCreateLedgerOp().withEnsembleSize(3).withWriteQuorumSize(2).withAckQuorumSize(2)
                .withDigestType(DigestType.CRC32C).withPassword(Setting.PASSWORD).makeAdv().execute().get();
    }

    @ParameterizedTest
    @EnumSource(Protocol.class)
    void entriesMayArriveBackwards(Protocol protocol) throws Exception {
        WriteAdvHandle writer = create(client(protocol));
        List<CompletableFuture<Long>> pending = new ArrayList<>();
        for (long entry = 299; entry >= 0; entry--) {
            pending.add(writer.writeAsync(entry, Setting.payload(writer.getId(), entry, SIZE)));
        }
        for (int i = 0; i < pending.size(); i++) {
            assertEquals(299 - i, pending.get(i).get());
        }
        assertEquals(299, writer.getLastAddConfirmed());
        writer.close();
        try (ReadHandle reader = Setting.open(client(protocol), writer.getId(), true)) {
            assertEquals(299, reader.getLastAddConfirmed());
            Setting.verify(reader, 0, 299, SIZE);
        }
    }

    @ParameterizedTest
    @EnumSource(Protocol.class)
    void anIdIsTakenOnce(Protocol protocol) throws Exception {
        WriteAdvHandle writer = create(client(protocol));
        writer.write(0, Setting.payload(writer.getId(), 0, SIZE));
        assertFails(Code.DuplicateEntryIdException, () -> writer.write(0, new byte[SIZE]));
        writer.close();
    }
}

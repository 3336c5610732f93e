package dev.podkeeper.interop;

import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.api.BKException.Code;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.util.AvailabilityOfEntriesOfLedger;
import org.junit.jupiter.api.Test;

import static org.junit.jupiter.api.Assertions.assertEquals;

/**
 * GET_LIST_OF_ENTRIES_OF_LEDGER: which entries a bookie holds. Runs on a cluster of its own where the bookies are the
 * reference's: that one answers only with the sorted or interleaved storage.
 */
class EntriesOfLedgerTest extends ClientTest {

    @Test
    void eachBookieNamesItsShare() throws Exception {
        WriteHandle writer = Setting.create(client(Protocol.V3), 3, 2, 2);
        Setting.append(writer, 0, 99, 60);
        writer.close();
        List<BookieId> ensemble = writer.getLedgerMetadata().getAllEnsembles().get(0L);
        BookKeeperAdmin admin = new BookKeeperAdmin(client(Protocol.V3));
        long copies = 0;
        for (int i = 0; i < ensemble.size(); i++) {
            AvailabilityOfEntriesOfLedger held = admin.asyncGetListOfEntriesOfLedger(ensemble.get(i), writer.getId())
                    .get(20, TimeUnit.SECONDS);
            for (long entry = 0; entry < 100; entry++) {
                assertEquals(Math.floorMod(i - entry, 3) < 2, held.isEntryAvailable(entry),
                        "entry " + entry + " at bookie " + i);
            }
            copies += held.getTotalNumOfAvailableEntries();
        }
        assertEquals(200, copies);
    }

    @Test
    void anUnknownLedgerIsNotThere() throws Exception {
        BookKeeperAdmin admin = new BookKeeperAdmin(client(Protocol.V3));
        BookieId bookie = admin.getAvailableBookies().iterator().next();
        assertFails(Code.NoSuchLedgerExistsException,
                () -> admin.asyncGetListOfEntriesOfLedger(bookie, 123_456_789L).get(20, TimeUnit.SECONDS));
    }
}

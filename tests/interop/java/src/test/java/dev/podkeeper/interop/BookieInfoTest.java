package dev.podkeeper.interop;

import java.util.Map;
import org.apache.bookkeeper.client.BookieInfoReader.BookieInfo;
import org.apache.bookkeeper.net.BookieId;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** GET_BOOKIE_INFO: free and total space of the ledger disks. A v2 client asks over v3 as well. */
class BookieInfoTest extends ClientTest {

    @ParameterizedTest
    @EnumSource(Protocol.class)
    void everyBookieTellsItsSpace(Protocol protocol) throws Exception {
        Map<BookieId, BookieInfo> infos = client(protocol).getBookieInfo();
        assertEquals(Integer.parseInt(Setting.required("podkeeper.bookies")), infos.size());
        for (Map.Entry<BookieId, BookieInfo> each : infos.entrySet()) {
            BookieInfo info = each.getValue();
            assertTrue(info.getFreeDiskSpace() > 0 && info.getFreeDiskSpace() <= info.getTotalDiskSpace(),
                    each.getKey() + ": " + info);
        }
    }
}

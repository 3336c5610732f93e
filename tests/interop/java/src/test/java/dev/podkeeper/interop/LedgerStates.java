package dev.podkeeper.interop;

import java.io.Reader;
import java.io.Writer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.BKException;
import org.apache.bookkeeper.client.api.BKException.Code;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

/**
 * Leaves ledgers in each state at a bookie ("write"), and finds them so after its restart ("verify"; "verify-without-keys"
 * leaves the master key out). Arguments: the verb, a file that carries the ids from one to the other.
 */
public final class LedgerStates {

    private static final int SIZE = 500;
    private static final long LAST = 799;

    private LedgerStates() {}

    public static void main(String[] args) throws Exception {
        Path file = Path.of(args[1]);
        ClientConfiguration configuration = Setting.configuration(Protocol.V3);
        configuration.setExplictLacInterval(50);
        Properties ids = new Properties();
        try (BookKeeper client = Setting.client(configuration); RawBookie raw = new RawBookie()) {
            if (args[0].equals("write")) {
                write(client, raw, ids);
                try (Writer writer = Files.newBufferedWriter(file)) {
                    ids.store(writer, null);
                }
            } else {
                try (Reader reader = Files.newBufferedReader(file)) {
                    ids.load(reader);
                }
                verify(client, raw, ids, args[0].equals("verify"));
            }
        }
        System.exit(0); // the closed client's network threads would stay for two more seconds
    }

    private static WriteHandle fresh(BookKeeper client, Properties ids, String name) throws Exception {
        WriteHandle writer = Setting.create(client, 1, 1, 1);
        ids.setProperty(name, Long.toString(writer.getId()));
        return writer;
    }

    private static void write(BookKeeper client, RawBookie raw, Properties ids) throws Exception {
        WriteHandle closed = fresh(client, ids, "closed");
        Setting.append(closed, 0, LAST, SIZE);
        closed.close();

        WriteHandle fenced = fresh(client, ids, "fenced");
        Setting.append(fenced, 0, LAST, SIZE);
        BookieId bookie = Setting.only(fenced.getLedgerMetadata().getAllEnsembles().get(0L));
        assertEquals(Code.OK, raw.fence(Protocol.V3, bookie, fenced.getId(), Setting.PASSWORD));

        WriteHandle open = fresh(client, ids, "open");
        Setting.append(open, 0, LAST, SIZE);

        WriteHandle explicit = fresh(client, ids, "explicit");
        Setting.append(explicit, 0, LAST, SIZE);
        LedgerHandle reader = (LedgerHandle) Setting.open(client, explicit.getId(), false);
        for (int i = 0; i < 400 && reader.readExplicitLastConfirmed() < LAST; i++) {
            Thread.sleep(25);
        }
        assertEquals(LAST, reader.readExplicitLastConfirmed(), "explicit LAC before the restart");

        WriteHandle backwards = fresh(client, ids, "backwards");
        for (long entry = 99; entry >= 0; entry--) {
            assertEquals(Code.OK, raw.add(Protocol.V2, bookie, backwards.getId(), entry, -1,
                    Setting.payload(backwards.getId(), entry, SIZE)));
        }
    }

    private static long id(Properties ids, String name) {
        return Long.parseLong(ids.getProperty(name));
    }

    private static void verify(BookKeeper client, RawBookie raw, Properties ids, boolean keys) throws Exception {
        long fenced = id(ids, "fenced");
        BookieId bookie;
        try (ReadHandle reader = Setting.open(client, fenced, false)) {
            bookie = Setting.only(reader.getLedgerMetadata().getAllEnsembles().get(0L));
            Setting.verify(reader, 0, LAST, SIZE);
        }
        assertEquals(Code.LedgerFencedException,
                raw.add(Protocol.V3, bookie, fenced, LAST + 1, LAST, new byte[SIZE]), "add to the fenced ledger");

        try (ReadHandle reader = Setting.open(client, id(ids, "closed"), true)) {
            assertTrue(reader.isClosed());
            assertEquals(LAST, reader.getLastAddConfirmed());
            Setting.verify(reader, 0, LAST, SIZE);
        }

        try (LedgerHandle reader = (LedgerHandle) Setting.open(client, id(ids, "explicit"), false)) {
            assertEquals(LAST, reader.readExplicitLastConfirmed(), "explicit LAC");
        }

        long open = id(ids, "open");
        if (keys) {
            // "Not authorised" or, from the reference for a ledger not yet written since its start, an I/O error.
            int refused = raw.add(Protocol.V3, bookie, new byte[] {5}, open, LAST + 1, LAST, new byte[SIZE], 0);
            assertTrue(refused == Code.UnauthorizedAccessException || refused == Code.WriteException,
                    "add with another key: " + BKException.getMessage(refused));
        }
        assertEquals(Code.NoSuchEntryException, raw.read(Protocol.V3, bookie, open, LAST + 1));
        assertEquals(Code.OK, raw.add(Protocol.V3, bookie, open, LAST + 1, LAST, Setting.payload(open, LAST + 1, SIZE)));
        try (ReadHandle reader = Setting.open(client, open, false)) {
            assertFalse(reader.isClosed());
            Setting.verify(reader, 0, LAST + 1, SIZE);
        }
        try (ReadHandle reader = Setting.open(client, open, true)) {
            assertEquals(LAST + 1, reader.getLastAddConfirmed());
        }

        try (ReadHandle reader = Setting.open(client, id(ids, "backwards"), false)) {
            Setting.verify(reader, 0, 99, SIZE);
            assertEquals(Code.NoSuchEntryException, raw.read(Protocol.V3, bookie, reader.getId(), 100));
        }
    }
}

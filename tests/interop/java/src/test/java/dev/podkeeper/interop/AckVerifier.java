package dev.podkeeper.interop;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.net.BookieId;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

/**
 * Reads the entries of an {@link AckWriter} back and compares their bytes; fails if one that was acknowledged is missing.
 * Arguments: the writer's file, protocol, "recover" (close each ledger first, and read all of it) or "read" (what was
 * acknowledged, no more, past the quorum protocol). Prints the number of entries that were acknowledged.
 *
 * <p>"read" is for bookies that replay a torn journal record: the reference takes the last record of a journal whose process
 * was killed even if zeros stand in place of its end. That entry was never acknowledged, but a client that opens the ledger
 * reads it, sees its digest fail, and can neither learn the LAC nor close the ledger when there is no other copy.
 */
public final class AckVerifier {

    private static final int READ_RANGE = 200;

    private AckVerifier() {}

    public static void main(String[] args) throws Exception {
        Map<Long, Long> acknowledged = new TreeMap<>();
        long count = 0;
        String text = Files.readString(Path.of(args[0]));
        for (String line : text.substring(0, text.lastIndexOf('\n')).split("\n")) { // the last line may be cut off
            String[] ids = line.split(" ");
            acknowledged.merge(Long.parseLong(ids[0]), Long.parseLong(ids[1]), Math::max);
            count++;
        }
        try (BookKeeper client = Setting.client(Protocol.valueOf(args[1])); RawBookie raw = new RawBookie()) {
            for (Map.Entry<Long, Long> each : acknowledged.entrySet()) {
                if (args[2].equals("recover")) {
                    recover(client, each.getKey(), each.getValue());
                } else {
                    read(client, raw, each.getKey(), each.getValue());
                }
            }
        }
        System.out.println(count);
        System.exit(0); // the closed client's network threads would stay for two more seconds
    }

    private static void recover(BookKeeper client, long ledger, long last) throws Exception {
        try (ReadHandle reader = Setting.open(client, ledger, true)) {
            assertTrue(reader.getLastAddConfirmed() >= last, "ledger " + ledger + ": entry " + last
                    + " was acknowledged, recovery closed it at " + reader.getLastAddConfirmed());
            Setting.verify(reader, 0, reader.getLastAddConfirmed(), AckWriter::size);
        }
    }

    private static void read(BookKeeper client, RawBookie raw, long ledger, long last) throws Exception {
        LedgerMetadata metadata = client.getLedgerManager().readLedgerMetadata(ledger).get().getValue();
        BookieId bookie = Setting.only(metadata.getAllEnsembles().get(0L));
        for (long from = 0; from <= last; from += READ_RANGE) {
            List<CompletableFuture<byte[]>> range = new ArrayList<>();
            for (long entry = from; entry <= Math.min(last, from + READ_RANGE - 1); entry++) {
                range.add(raw.payload(bookie, ledger, entry));
            }
            for (int i = 0; i < range.size(); i++) {
                long entry = from + i;
                assertArrayEquals(Setting.payload(ledger, entry, AckWriter.size(entry)), range.get(i).get(),
                        "ledger " + ledger + " entry " + entry);
            }
        }
    }
}

package dev.podkeeper.bench;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** The ledgers that one run wrote and another reads: a text file, one "ledger id, last entry id, payload bytes of an entry" a line. */
final class LedgerFile {

    /** One closed ledger. */
    record Written(long ledgerId, long lastEntryId, int entrySize) {}

    private LedgerFile() {}

    static void write(Path path, List<Written> ledgers) throws IOException {
        Files.write(path, ledgers.stream()
                .map(each -> each.ledgerId() + " " + each.lastEntryId() + " " + each.entrySize())
                .toList());
    }

    static List<Written> read(Path path) throws IOException {
        List<Written> ledgers = new ArrayList<>();
        for (String line : Files.readAllLines(path)) {
            String[] fields = line.split(" ");
            ledgers.add(new Written(Long.parseLong(fields[0]), Long.parseLong(fields[1]), Integer.parseInt(fields[2])));
        }
        return ledgers;
    }
}

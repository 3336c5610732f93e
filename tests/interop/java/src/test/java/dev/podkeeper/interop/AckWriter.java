package dev.podkeeper.interop;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.concurrent.Semaphore;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.api.WriteHandle;

/**
 * Appends to several ledgers of one bookie until an append fails or the process is ended, and notes every acknowledged entry.
 *
 * <p>Arguments: file for "ledger entry" lines, protocol, number of ledgers, entries at most. The file is written without a
 * buffer: what a line says was acknowledged, however either process ends.
 */
public final class AckWriter {

    private static final int IN_FLIGHT = 300;

    private AckWriter() {}

    /** Payload bytes of an entry of these ledgers: from nothing to 2 KiB. */
    static int size(long entryId) {
        return (int) (entryId * 397 % 2048);
    }

    public static void main(String[] args) throws Exception {
        Protocol protocol = Protocol.valueOf(args[1]);
        WriteHandle[] ledgers = new WriteHandle[Integer.parseInt(args[2])];
        long limit = Long.parseLong(args[3]);
        Semaphore room = new Semaphore(IN_FLIGHT);
        try (BookKeeper client = Setting.client(protocol);
                FileChannel file = FileChannel.open(Path.of(args[0]), StandardOpenOption.CREATE, StandardOpenOption.APPEND)) {
            for (int i = 0; i < ledgers.length; i++) {
                ledgers[i] = Setting.create(client, 1, 1, 1);
            }
            boolean[] failed = new boolean[1];
            for (long i = 0; i < limit && !failed[0]; i++) {
                WriteHandle ledger = ledgers[(int) (i % ledgers.length)];
                long entry = i / ledgers.length;
                room.acquire();
                ledger.appendAsync(Setting.payload(ledger.getId(), entry, size(entry))).whenComplete((id, error) -> {
                    if (error == null) {
                        note(file, ledger.getId(), id);
                    } else {
                        failed[0] = true;
                    }
                    room.release();
                });
            }
            room.acquire(IN_FLIGHT);
        }
        System.exit(0); // the closed client's network threads would stay for two more seconds
    }

    private static void note(FileChannel file, long ledger, long entry) {
        try {
            file.write(ByteBuffer.wrap((ledger + " " + entry + "\n").getBytes(StandardCharsets.US_ASCII)));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}

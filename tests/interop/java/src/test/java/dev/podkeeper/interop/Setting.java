package dev.podkeeper.interop;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Collection;
import java.util.Queue;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.function.LongToIntFunction;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

/** Where the cluster is, clients for it, and entries whose bytes follow from their ids. */
final class Setting {

    static final byte[] PASSWORD = "interop".getBytes(StandardCharsets.US_ASCII);
    private static final int IN_FLIGHT = 500;
    private static final int READ_RANGE = 500;

    private Setting() {}

    /** A system property that the caller of the JVM must set. */
    static String required(String name) {
        String value = System.getProperty(name);
        if (value == null) {
            throw new IllegalStateException("give -D" + name + "=...");
        }
        return value;
    }

    static ClientConfiguration configuration(Protocol protocol) {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(required("podkeeper.metadata"));
        configuration.setUseV2WireProtocol(protocol == Protocol.V2);
        configuration.setBatchReadEnabled(true);
        configuration.setAddEntryTimeout(10);
        configuration.setReadEntryTimeout(10);
        return configuration;
    }

    static BookKeeper client(Protocol protocol) throws Exception {
        return client(configuration(protocol));
    }

    static BookKeeper client(ClientConfiguration configuration) throws IOException, InterruptedException, BKException {
        return new BookKeeper(configuration);
    }

    static WriteHandle create(BookKeeper client, int ensemble, int writeQuorum, int ackQuorum) throws Exception {
        return client.newCreateLedgerOp().withEnsembleSize(ensemble).withWriteQuorumSize(writeQuorum)
                .withAckQuorumSize(ackQuorum).withDigestType(DigestType.CRC32C).withPassword(PASSWORD).execute().get();
    }

    static ReadHandle open(BookKeeper client, long ledgerId, boolean recovery) throws Exception {
        return client.newOpenLedgerOp().withLedgerId(ledgerId).withDigestType(DigestType.CRC32C).withPassword(PASSWORD)
                .withRecovery(recovery).execute().get();
    }

    /** The bytes of an entry: pseudo-random, from its ids. */
    static byte[] payload(long ledgerId, long entryId, int size) {
        byte[] bytes = new byte[size];
        new Random(ledgerId * 1_000_003 + entryId).nextBytes(bytes);
        return bytes;
    }

    /** Appends entries {@code first} to {@code last} and waits for all of them. */
    static void append(WriteHandle ledger, long first, long last, int size) throws Exception {
        Queue<CompletableFuture<Long>> pending = new ArrayDeque<>();
        long expected = first;
        for (long entry = first; entry <= last; entry++) {
            pending.add(ledger.appendAsync(payload(ledger.getId(), entry, size)));
            if (pending.size() >= IN_FLIGHT) {
                assertEquals(expected++, pending.remove().get());
            }
        }
        while (!pending.isEmpty()) {
            assertEquals(expected++, pending.remove().get());
        }
    }

    /** Reads entries {@code first} to {@code last} and compares every byte. */
    static void verify(ReadHandle ledger, long first, long last, int size) throws Exception {
        verify(ledger, first, last, entry -> size);
    }

    /** The same where the size depends on the entry. */
    static void verify(ReadHandle ledger, long first, long last, LongToIntFunction size) throws Exception {
        for (long from = first; from <= last; from += READ_RANGE) {
            long to = Math.min(last, from + READ_RANGE - 1);
            try (LedgerEntries entries = ledger.readUnconfirmed(from, to)) {
                verify(entries, ledger.getId(), from, to, size);
            }
        }
    }

    /** That these are the entries {@code first} to {@code last}, with every byte. */
    static void verify(LedgerEntries entries, long ledgerId, long first, long last, LongToIntFunction size) {
        long expected = first;
        for (LedgerEntry entry : entries) {
            assertEquals(expected, entry.getEntryId());
            assertArrayEquals(payload(ledgerId, expected, size.applyAsInt(expected)), entry.getEntryBytes());
            expected++;
        }
        assertEquals(last + 1, expected, "entries read");
    }

    /** A buffer that the callee may release. */
    static ByteBuf buffer(byte[] bytes) {
        return ByteBufAllocator.DEFAULT.buffer(bytes.length).writeBytes(bytes);
    }

    static <T> T only(Collection<T> items) {
        assertEquals(1, items.size(), () -> "one expected, got " + items);
        return items.iterator().next();
    }
}

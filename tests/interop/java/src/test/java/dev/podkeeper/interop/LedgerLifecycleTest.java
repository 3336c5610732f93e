package dev.podkeeper.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Stream;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.api.BKException.Code;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Create, append, read, close, delete. */
class LedgerLifecycleTest extends ClientTest {

    private static final long LAST = 1499;
    private static final int SIZE = 300;

    static Stream<Arguments> protocolsAndDigests() {
        return Stream.of(Protocol.values()).flatMap(
                protocol -> Stream.of(DigestType.values()).map(digest -> Arguments.of(protocol, digest)));
    }

    @ParameterizedTest
    @MethodSource("protocolsAndDigests")
    void writesAndReadsWithEachDigest(Protocol protocol, DigestType digest) throws Exception {
        BookKeeper client = client(protocol);
        WriteHandle writer = client.newCreateLedgerOp().withEnsembleSize(1).withWriteQuorumSize(1).withAckQuorumSize(1)
                .withDigestType(digest).withPassword(Setting.PASSWORD).execute().get();
        Setting.append(writer, 0, LAST, SIZE);
        Setting.verify(writer, 0, LAST, SIZE);
        writer.close();
        ReadHandle reader = client.newOpenLedgerOp().withLedgerId(writer.getId()).withDigestType(digest)
                .withPassword(Setting.PASSWORD).execute().get();
        assertTrue(reader.isClosed());
        assertEquals(LAST, reader.getLastAddConfirmed());
        assertEquals((LAST + 1) * SIZE, reader.getLength());
        Setting.verify(reader, 0, LAST, SIZE);
        reader.close();
        client.newDeleteLedgerOp().withLedgerId(writer.getId()).execute().get();
        assertFails(Code.NoSuchLedgerExistsOnMetadataServerException,
                () -> client.newOpenLedgerOp().withLedgerId(writer.getId()).withDigestType(digest)
                        .withPassword(Setting.PASSWORD).execute().get());
    }

    @ParameterizedTest
    @EnumSource(Protocol.class)
    void eachProtocolReadsWhatTheOtherWrote(Protocol protocol) throws Exception {
        Protocol other = protocol == Protocol.V2 ? Protocol.V3 : Protocol.V2;
        WriteHandle writer = Setting.create(client(protocol), 1, 1, 1);
        Setting.append(writer, 0, 99, SIZE);
        writer.close();
        try (ReadHandle reader = Setting.open(client(other), writer.getId(), true)) {
            Setting.verify(reader, 0, 99, SIZE);
        }
    }

    @ParameterizedTest
    @EnumSource(Protocol.class)
    void entriesOfAllSizesKeepTheirBytes(Protocol protocol) throws Exception {
        List<Integer> sizes = List.of(0, 1, 7, 8, 63, 64, 511, 512, 4095, 4096, 16_383, 16_384, 65_536, 1_000_000);
        WriteHandle writer = Setting.create(client(protocol), 1, 1, 1);
        for (int i = 0; i < sizes.size(); i++) {
            assertEquals(i, writer.append(Setting.payload(writer.getId(), i, sizes.get(i))));
        }
        writer.close();
        try (ReadHandle reader = Setting.open(client(protocol), writer.getId(), false)) {
            for (int i = 0; i < sizes.size(); i++) {
                try (LedgerEntries entries = reader.read(i, i)) {
                    assertArrayEquals(Setting.payload(writer.getId(), i, sizes.get(i)), entries.getEntry(i).getEntryBytes());
                }
            }
        }
    }

    /** As a broker asks for what its consumers are behind by, while its producers go on. */
    @ParameterizedTest
    @CsvSource({"V2, 100", "V2, 1000", "V3, 100", "V3, 1000"})
    void windowsOfReadsAreUnderWayTogetherBesideAWriter(Protocol protocol, int window) throws Exception {
        long last = 8L * window - 1;
        WriteHandle writer = Setting.create(client(protocol), 1, 1, 1);
        Setting.append(writer, 0, last, SIZE);
        List<CompletableFuture<LedgerEntries>> reads = new ArrayList<>();
        for (long from = 0; from <= last; from += window) {
            reads.add(writer.readUnconfirmedAsync(from, from + window - 1));
        }
        Setting.append(writer, last + 1, last + window, SIZE);
        for (int i = 0; i < reads.size(); i++) {
            try (LedgerEntries entries = reads.get(i).get()) {
                Setting.verify(entries, writer.getId(), (long) i * window, (i + 1L) * window - 1, entry -> SIZE);
            }
        }
        Setting.verify(writer, last + 1, last + window, SIZE);
        writer.close();
    }

    @Test
    void aLedgerWithoutEntriesClosesAndOpens() throws Exception {
        WriteHandle writer = Setting.create(client(Protocol.V3), 1, 1, 1);
        writer.close();
        try (ReadHandle reader = Setting.open(client(Protocol.V3), writer.getId(), true)) {
            assertEquals(-1, reader.getLastAddConfirmed());
            assertEquals(0, reader.getLength());
        }
    }

    @ParameterizedTest
    @EnumSource(Protocol.class)
    void anEntryThatWasNeverWrittenIsNotThere(Protocol protocol) throws Exception {
        WriteHandle writer = Setting.create(client(protocol), 1, 1, 1);
        Setting.append(writer, 0, 9, SIZE);
        assertFails(Code.NoSuchEntryException, () -> writer.readUnconfirmed(10, 10));
        writer.close();
        assertFails(Code.ReadException, () -> writer.read(0, 10));
    }
}

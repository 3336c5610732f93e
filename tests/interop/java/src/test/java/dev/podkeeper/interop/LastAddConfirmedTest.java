package dev.podkeeper.interop;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.BKException.Code;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** What a tailing reader sees of a ledger that is still written. */
class LastAddConfirmedTest extends ClientTest {

    private static final int SIZE = 50;

    @ParameterizedTest
    @EnumSource(Protocol.class)
    void aReaderSeesTheLacOneEntryBehindTheWriter(Protocol protocol) throws Exception {
        WriteHandle writer = Setting.create(client(protocol), 3, 2, 2);
        for (long entry = 0; entry < 5; entry++) {
            writer.append(Setting.payload(writer.getId(), entry, SIZE)); // one by one: each carries the LAC before it
        }
        try (ReadHandle reader = Setting.open(client(protocol), writer.getId(), false)) {
            assertFalse(reader.isClosed());
            assertEquals(3, reader.readLastAddConfirmed());
            assertEquals(3, reader.tryReadLastAddConfirmed());
            Setting.verify(reader, 0, 4, SIZE); // the last one is there, though not confirmed yet
            assertFails(Code.ReadException, () -> reader.read(0, 4));
            try (LedgerEntries entries = reader.read(0, 3)) {
                assertArrayEquals(Setting.payload(writer.getId(), 3, SIZE), entries.getEntry(3).getEntryBytes());
            }
        }
        writer.close();
    }

    @Test
    void aLongPollWakesWhenTheLacMoves() throws Exception {
        WriteHandle writer = Setting.create(client(Protocol.V3), 3, 3, 2);
        Setting.append(writer, 0, 0, SIZE);
        try (ReadHandle reader = Setting.open(client(Protocol.V3), writer.getId(), false)) {
            long start = System.nanoTime();
            CompletableFuture<LastConfirmedAndEntry> poll = reader.readLastAddConfirmedAndEntryAsync(0, 20_000, false);
            Thread.sleep(300); // the poll must be waiting, not find the entry there
            assertFalse(poll.isDone());
            Setting.append(writer, 1, 1, SIZE);
            try (LastConfirmedAndEntry answer = poll.get(15, TimeUnit.SECONDS)) {
                assertEquals(0, answer.getLastAddConfirmed());
                assertTrue(answer.hasEntry());
                assertEquals(0, answer.getEntry().getEntryId());
                assertArrayEquals(Setting.payload(writer.getId(), 0, SIZE), answer.getEntry().getEntryBytes());
            }
            long millis = (System.nanoTime() - start) / 1_000_000;
            assertTrue(millis < 10_000, "woken by the add, not by the timer: " + millis + " ms");
        }
        writer.close();
    }

    @Test
    void aLongPollAnswersAtOnceWhenTheLacIsAlreadyThere() throws Exception {
        WriteHandle writer = Setting.create(client(Protocol.V3), 1, 1, 1);
        for (long entry = 0; entry < 4; entry++) {
            writer.append(Setting.payload(writer.getId(), entry, SIZE));
        }
        try (ReadHandle reader = Setting.open(client(Protocol.V3), writer.getId(), false)) {
            for (long entry = 0; entry <= 2; entry++) {
                try (LastConfirmedAndEntry answer = reader.readLastAddConfirmedAndEntry(entry, 20_000, false)) {
                    assertEquals(2, answer.getLastAddConfirmed());
                    assertTrue(answer.hasEntry());
                    assertEquals(entry, answer.getEntry().getEntryId());
                }
            }
        }
        writer.close();
    }

    @Test
    void aLongPollEndsWithItsTimeOut() throws Exception {
        WriteHandle writer = Setting.create(client(Protocol.V3), 1, 1, 1);
        for (long entry = 0; entry < 2; entry++) {
            writer.append(Setting.payload(writer.getId(), entry, SIZE));
        }
        try (ReadHandle reader = Setting.open(client(Protocol.V3), writer.getId(), false)) {
            assertEquals(0, reader.readLastAddConfirmed());
            long start = System.nanoTime();
            try (LastConfirmedAndEntry answer = reader.readLastAddConfirmedAndEntry(1, 700, false)) {
                assertEquals(0, answer.getLastAddConfirmed());
                assertFalse(answer.hasEntry());
            }
            long millis = (System.nanoTime() - start) / 1_000_000;
            assertTrue(millis >= 600 && millis < 10_000, "waited " + millis + " ms for a time-out of 700");
        }
        writer.close();
    }

    @Test
    void anExplicitLacTellsOfTheLastEntryOfAnIdleWriter() throws Exception {
        ClientConfiguration configuration = Setting.configuration(Protocol.V3);
        configuration.setExplictLacInterval(50);
        try (BookKeeper client = Setting.client(configuration)) {
            WriteHandle writer = Setting.create(client, 3, 2, 2);
            Setting.append(writer, 0, 9, SIZE);
            try (LedgerHandle reader = (LedgerHandle) Setting.open(client, writer.getId(), false)) {
                long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
                long lac = reader.readExplicitLastConfirmed();
                while (lac < 9 && System.nanoTime() < deadline) {
                    Thread.sleep(20);
                    lac = reader.readExplicitLastConfirmed();
                }
                assertEquals(9, lac);
                Setting.verify(reader, 0, 9, SIZE);
            }
            writer.close();
        }
    }

    @Test
    void anExplicitLacWakesALongPoll() throws Exception {
        ClientConfiguration configuration = Setting.configuration(Protocol.V3);
        configuration.setExplictLacInterval(400);
        try (BookKeeper client = Setting.client(configuration)) {
            WriteHandle writer = Setting.create(client, 1, 1, 1);
            Setting.append(writer, 0, 0, SIZE);
            try (ReadHandle reader = Setting.open(client, writer.getId(), false);
                    LastConfirmedAndEntry answer = reader.readLastAddConfirmedAndEntry(0, 20_000, false)) {
                assertEquals(0, answer.getLastAddConfirmed());
                assertTrue(answer.hasEntry());
                assertEquals(0, answer.getEntry().getEntryId());
            }
            writer.close();
        }
    }
}

package dev.podkeeper.interop;

import java.util.EnumMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.api.BKException;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

/** One client per protocol, made when it is first needed, closed after the class. */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
@Timeout(60)
abstract class ClientTest {

    private final Map<Protocol, BookKeeper> clients = new EnumMap<>(Protocol.class);
    private RawBookie raw;

    BookKeeper client(Protocol protocol) throws Exception {
        BookKeeper client = clients.get(protocol);
        if (client == null) {
            client = Setting.client(protocol);
            clients.put(protocol, client);
        }
        return client;
    }

    /** Requests to one bookie, past the quorum protocol. */
    RawBookie raw() throws Exception {
        if (raw == null) {
            raw = new RawBookie();
        }
        return raw;
    }

    @AfterAll
    void closeClients() throws Exception {
        for (BookKeeper client : clients.values()) {
            client.close();
        }
        if (raw != null) {
            raw.close();
        }
    }

    /** The call fails with this client code (of {@link BKException.Code}), and no other. */
    static void assertFails(int code, Executable call) {
        Throwable error = assertThrows(Exception.class, call);
        while (error instanceof ExecutionException && error.getCause() != null) {
            error = error.getCause();
        }
        if (!(error instanceof BKException refused)) {
            throw new AssertionError("expected " + BKException.getMessage(code), error);
        }
        assertEquals(BKException.getMessage(code), BKException.getMessage(refused.getCode()));
    }
}

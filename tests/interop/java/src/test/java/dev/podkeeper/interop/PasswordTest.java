package dev.podkeeper.interop;

import org.apache.bookkeeper.client.api.BKException.Code;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.net.BookieId;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

import static org.junit.jupiter.api.Assertions.assertEquals;

/** The ledger's password guards writing, at the client and at the bookie. */
class PasswordTest extends ClientTest {

    private static final byte[] WRONG = {9, 9, 9};

    @ParameterizedTest
    @EnumSource(Protocol.class)
    void theClientRefusesAWrongPassword(Protocol protocol) throws Exception {
        try (WriteHandle writer = Setting.create(client(protocol), 1, 1, 1)) {
            Setting.append(writer, 0, 3, 10);
            assertFails(Code.UnauthorizedAccessException,
                    () -> client(protocol).newOpenLedgerOp().withLedgerId(writer.getId())
                            .withDigestType(DigestType.CRC32C).withPassword(WRONG).execute().get());
        }
    }

    @ParameterizedTest
    @EnumSource(Protocol.class)
    void theBookieRefusesAnAddWithAnotherKey(Protocol protocol) throws Exception {
        try (WriteHandle writer = Setting.create(client(protocol), 1, 1, 1)) {
            Setting.append(writer, 0, 3, 10);
            BookieId bookie = Setting.only(writer.getLedgerMetadata().getAllEnsembles().get(0L));
            assertEquals(Code.UnauthorizedAccessException,
                    raw().add(protocol, bookie, WRONG, writer.getId(), 4, 3, new byte[10], 0));
            assertEquals(Code.NoSuchEntryException, raw().read(protocol, bookie, writer.getId(), 4));
            Setting.append(writer, 4, 5, 10);
            Setting.verify(writer, 0, 5, 10);
        }
    }
}

package dev.podkeeper.interop;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.Socket;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.OperationType;
import org.apache.bookkeeper.proto.ProtocolVersion;
import org.apache.bookkeeper.proto.Request;
import org.apache.bookkeeper.proto.Response;
import org.apache.bookkeeper.proto.StatusCode;
import org.apache.bookkeeper.proto.checksum.DigestManager;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

/** Entries at the frame limit of the stock client, 5 MiB, and beyond that of the bookie; both count the length bytes. */
class LargeEntryTest extends ClientTest {

    private static final int FRAME_LIMIT = 5 * 1024 * 1024;
    private static final int BOOKIE_LIMIT = 5_253_120; // the bookie's default nettyMaxFrameSizeBytes
    private static final int V3_HEAD = 1024; // more than a frame of version 3 may be longer by
    private static final int V2_OVERHEAD = 4 + 4 + 20 + 32 + 4; // length, header word, master key; metadata, CRC32C

    /** One connection, frames as given. */
    private record Wire(Socket socket, DataOutputStream out, DataInputStream in) implements AutoCloseable {

        static Wire to(BookieId bookie) throws IOException {
            String[] address = bookie.getId().split(":");
            Socket socket = new Socket(address[0], Integer.parseInt(address[1]));
            socket.setSoTimeout(20_000);
            return new Wire(socket, new DataOutputStream(socket.getOutputStream()),
                    new DataInputStream(socket.getInputStream()));
        }

        void send(byte[] body) throws IOException {
            out.writeInt(body.length);
            try {
                out.write(body);
                out.flush();
            } catch (IOException closed) {
                // The peer may close as soon as it saw the length; what counts is what receive() finds.
            }
        }

        byte[] receive() throws IOException {
            byte[] body = new byte[in.readInt()];
            in.readFully(body);
            return body;
        }

        @Override
        public void close() throws IOException {
            socket.close();
        }
    }

    private static byte[] v3Add(long ledger, int bodyBytes) throws Exception {
        byte[] entry = new byte[bodyBytes];
        java.nio.ByteBuffer.wrap(entry).putLong(ledger).putLong(0).putLong(-1).putLong(bodyBytes - 36);
        Request request = new Request();
        request.setHeader().setVersion(ProtocolVersion.VERSION_THREE).setOperation(OperationType.ADD_ENTRY).setTxnId(1);
        request.setAddRequest().setLedgerId(ledger).setEntryId(0)
                .setMasterKey(DigestManager.generateMasterKey(Setting.PASSWORD)).setBody(entry);
        return request.toByteArray();
    }

    private static byte[] v2Add(long ledger, int bodyBytes) throws Exception {
        byte[] body = new byte[bodyBytes];
        java.nio.ByteBuffer.wrap(body).putInt(0x02010000).put(DigestManager.generateMasterKey(Setting.PASSWORD))
                .putLong(ledger).putLong(0).putLong(-1).putLong(bodyBytes - 60);
        return body;
    }

    private WriteHandle ledger;

    private BookieId newLedgersBookie() throws Exception {
        ledger = Setting.create(client(Protocol.V3), 1, 1, 1);
        return Setting.only(ledger.getLedgerMetadata().getAllEnsembles().get(0L));
    }

    @Test
    void theStockClientWritesAndReadsTheLargestV2Entry() throws Exception {
        int largest = FRAME_LIMIT - V2_OVERHEAD;
        WriteHandle writer = Setting.create(client(Protocol.V2), 1, 1, 1);
        Setting.append(writer, 0, 2, largest);
        writer.close();
        try (ReadHandle reader = Setting.open(client(Protocol.V2), writer.getId(), false)) {
            Setting.verify(reader, 0, 2, largest);
        }
    }

    @Test
    void theStockClientWritesAndReadsAFiveMegabyteEntryOverV3() throws Exception {
        int large = FRAME_LIMIT - 200; // room for the protobuf envelope, whose size depends on the ids in it
        WriteHandle writer = Setting.create(client(Protocol.V3), 1, 1, 1);
        Setting.append(writer, 0, 2, large);
        writer.close();
        try (ReadHandle reader = Setting.open(client(Protocol.V3), writer.getId(), false)) {
            Setting.verify(reader, 0, 2, large);
        }
    }

    @Test
    void aV3FrameOfExactlyTheLimitIsTaken() throws Exception {
        try (Wire wire = Wire.to(newLedgersBookie())) {
            int envelope = v3Add(ledger.getId(), 1_000_000 * 4).length - 1_000_000 * 4;
            byte[] frame = v3Add(ledger.getId(), FRAME_LIMIT - 4 - envelope);
            assertEquals(FRAME_LIMIT - 4, frame.length);
            wire.send(frame);
            Response response = new Response();
            response.parseFrom(wire.receive());
            assertEquals(StatusCode.EOK, response.getStatus());
            assertEquals(ledger.getId(), response.getAddResponse().getLedgerId());
        }
    }

    @Test
    void aV2FrameOfExactlyTheLimitIsTaken() throws Exception {
        try (Wire wire = Wire.to(newLedgersBookie())) {
            wire.send(v2Add(ledger.getId(), FRAME_LIMIT - 4));
            byte[] response = wire.receive();
            assertEquals(24, response.length);
            assertEquals(0, java.nio.ByteBuffer.wrap(response).getInt(4));
        }
    }

    @ParameterizedTest
    @EnumSource(Protocol.class)
    void aFrameOneByteOverTheLimitClosesTheConnection(Protocol protocol) throws Exception {
        BookieId bookie = newLedgersBookie();
        try (Wire wire = Wire.to(bookie)) {
            if (protocol == Protocol.V2) {
                wire.send(v2Add(ledger.getId(), BOOKIE_LIMIT - 3));
            } else {
                int envelope = v3Add(ledger.getId(), 1_000_000 * 4).length - 1_000_000 * 4;
                wire.send(v3Add(ledger.getId(), BOOKIE_LIMIT + V3_HEAD - 3 - envelope));
            }
            IOException closed = assertThrows(IOException.class, wire::receive);
            assertEquals(false, closed instanceof java.net.SocketTimeoutException, "closed, not left waiting");
        }
        Setting.append(ledger, 0, 9, 100);
        Setting.verify(ledger, 0, 9, 100);
        ledger.close();
    }
}

package dev.podkeeper.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.api.BKException;
import org.apache.bookkeeper.client.api.CreateBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.ForceableHandle;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteAdvHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;

/**
 * The stock client as an agent of another process: one JSON object a line on standard input, one a line on standard output.
 *
 * <p>"do" names what to do; "protocol" (V2 or V3) which client does it. A failed call answers {"code": ...} with the code of
 * {@link BKException}; everything else that goes wrong ends the process. Handles stay open until they are closed by name:
 * one writer and one reader of each ledger. Entries hold what {@link Setting#payload} says, of {@link AckWriter#size} bytes.
 */
public final class ClientAgent {

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int ADD_TIMEOUT_SECONDS = 2;

    private final Map<Protocol, BookKeeper> clients = new EnumMap<>(Protocol.class);
    private final Map<Long, ForceableHandle> writers = new HashMap<>();
    private final Map<Long, ReadHandle> readers = new HashMap<>();

    private ClientAgent() {}

    public static void main(String[] args) {
        try {
            serve();
            System.exit(0); // without closing ledgers, as a client that dies
        } catch (Throwable e) {
            e.printStackTrace();
            System.exit(1); // the clients' threads would keep the process
        }
    }

    private static void serve() throws Exception {
        ClientAgent agent = new ClientAgent();
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(JSON.writeValueAsString(agent.answer(JSON.readTree(line))));
        }
    }

    private ObjectNode answer(JsonNode request) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        try {
            act(request, answer);
        } catch (ExecutionException e) {
            if (!(e.getCause() instanceof BKException refused)) {
                throw e;
            }
            answer.put("code", refused.getCode());
        } catch (BKException e) {
            answer.put("code", e.getCode());
        }
        return answer;
    }

    private void act(JsonNode request, ObjectNode answer) throws Exception {
        long id = request.path("ledger").asLong(-1);
        switch (request.get("do").asText()) {
            case "create" -> create(request, answer);
            case "append" -> append((WriteHandle) writers.get(id), request.get("count").asInt());
            case "write" -> write((WriteAdvHandle) writers.get(id), request.get("entries"));
            case "force" -> writers.get(id).force().get();
            case "close" -> ((AutoCloseable) writers.remove(id)).close();
            case "open" -> {
                ReadHandle old = readers.put(id, open(request, id));
                if (old != null) {
                    old.close();
                }
                describe(readers.get(id), answer);
            }
            case "read" -> read(readers.get(id), request, answer);
            case "lac" -> answer.put("lac", readers.get(id).readLastAddConfirmed());
            case "poll" -> poll(readers.get(id), request, answer);
            case "metadata" -> metadata(request, id, answer);
            case "delete" -> client(request).newDeleteLedgerOp().withLedgerId(id).execute().get();
            default -> throw new IllegalArgumentException(request.toString());
        }
    }

    private BookKeeper client(JsonNode request) throws Exception {
        Protocol protocol = Protocol.valueOf(request.path("protocol").asText("V3"));
        BookKeeper client = clients.get(protocol);
        if (client == null) {
            ClientConfiguration configuration = Setting.configuration(protocol);
            configuration.setAddEntryTimeout(ADD_TIMEOUT_SECONDS);
            client = Setting.client(configuration);
            clients.put(protocol, client);
        }
        return client;
    }

    private static byte[] password(JsonNode request) {
        return request.get("password").asText().getBytes(StandardCharsets.UTF_8);
    }

    private void create(JsonNode request, ObjectNode answer) throws Exception {
        Map<String, byte[]> custom = new HashMap<>();
        for (Map.Entry<String, JsonNode> each : request.get("metadata").properties()) {
            custom.put(each.getKey(), each.getValue().binaryValue());
        }
        CreateBuilder builder = client(request).newCreateLedgerOp().withEnsembleSize(request.get("ensemble").asInt())
                .withWriteQuorumSize(request.get("write_quorum").asInt())
                .withAckQuorumSize(request.get("ack_quorum").asInt())
                .withDigestType(DigestType.valueOf(request.get("digest").asText())).withPassword(password(request))
                .withCustomMetadata(custom);
        if (request.path("deferred").asBoolean()) {
            builder = builder.withWriteFlags(WriteFlag.DEFERRED_SYNC);
        }
        ForceableHandle writer;
        long id;
        if (request.path("advanced").asBoolean()) {
            WriteAdvHandle handle = request.has("ledger")
                    ? builder.makeAdv().withLedgerId(request.get("ledger").asLong()).execute().get()
                    : builder.makeAdv().execute().get();
            id = handle.getId();
            writer = handle;
        } else {
            WriteHandle handle = builder.execute().get();
            id = handle.getId();
            writer = handle;
        }
        writers.put(id, writer);
        answer.put("ledger", id);
    }

    private static void append(WriteHandle writer, int count) throws Exception {
        List<CompletableFuture<Long>> pending = new ArrayList<>();
        long first = writer.getLastAddPushed() + 1;
        for (long entry = first; entry < first + count; entry++) {
            pending.add(writer.appendAsync(Setting.payload(writer.getId(), entry, AckWriter.size(entry))));
        }
        for (CompletableFuture<Long> each : pending) {
            if (each.get() != first++) {
                throw new AssertionError("entries out of order in ledger " + writer.getId());
            }
        }
    }

    private static void write(WriteAdvHandle writer, JsonNode entries) throws Exception {
        List<CompletableFuture<Long>> pending = new ArrayList<>();
        for (JsonNode each : entries) {
            long entry = each.asLong();
            pending.add(writer.writeAsync(entry, Setting.payload(writer.getId(), entry, AckWriter.size(entry))));
        }
        for (CompletableFuture<Long> each : pending) {
            each.get();
        }
    }

    private ReadHandle open(JsonNode request, long id) throws Exception {
        return client(request).newOpenLedgerOp().withLedgerId(id).withPassword(password(request))
                .withDigestType(DigestType.valueOf(request.get("digest").asText()))
                .withRecovery(request.get("recover").asBoolean()).execute().get();
    }

    private static void describe(ReadHandle reader, ObjectNode answer) {
        answer.put("lac", reader.getLastAddConfirmed());
        answer.put("length", reader.getLength());
        answer.put("closed", reader.isClosed());
    }

    private static void read(ReadHandle reader, JsonNode request, ObjectNode answer) throws Exception {
        long first = request.get("first").asLong();
        long last = request.get("last").asLong();
        ArrayNode payloads = answer.putArray("payloads");
        while (first <= last) {
            try (LedgerEntries entries = switch (request.get("how").asText()) {
                    case "single" -> reader.read(first, last);
                    case "unconfirmed" -> reader.readUnconfirmed(first, last);
                    case "batch" -> reader.batchRead(first, (int) (last - first + 1), 1 << 20);
                    default -> throw new IllegalArgumentException(request.toString());
                }) {
                for (LedgerEntry entry : entries) {
                    if (entry.getEntryId() != first++) {
                        throw new AssertionError("entry " + entry.getEntryId() + " instead of " + (first - 1));
                    }
                    payloads.add(entry.getEntryBytes());
                }
            }
        }
    }

    private static void poll(ReadHandle reader, JsonNode request, ObjectNode answer) throws Exception {
        long wanted = request.get("entry").asLong();
        try (LastConfirmedAndEntry news = reader.readLastAddConfirmedAndEntry(wanted, 10_000, false)) {
            answer.put("lac", news.getLastAddConfirmed());
            if (news.hasEntry()) {
                answer.put("entry", news.getEntry().getEntryBytes());
            }
        }
    }

    private void metadata(JsonNode request, long id, ObjectNode answer) throws Exception {
        LedgerMetadata metadata = client(request).getLedgerManager().readLedgerMetadata(id).get().getValue();
        answer.put("state", metadata.getState().name());
        answer.put("ensemble", metadata.getEnsembleSize());
        answer.put("write_quorum", metadata.getWriteQuorumSize());
        answer.put("ack_quorum", metadata.getAckQuorumSize());
        answer.put("last_entry", metadata.getLastEntryId());
        answer.put("length", metadata.getLength());
        answer.put("digest", metadata.getDigestType().name());
        answer.put("format", metadata.getMetadataFormatVersion());
        ObjectNode custom = answer.putObject("metadata");
        metadata.getCustomMetadata().forEach(custom::put);
        ObjectNode ensembles = answer.putObject("ensembles");
        metadata.getAllEnsembles().forEach((first, bookies) -> {
            ArrayNode names = ensembles.putArray(Long.toString(first));
            for (BookieId each : bookies) {
                names.add(each.toString());
            }
        });
    }
}

package dev.podkeeper.pulsar;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.netty.buffer.ByteBuf;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.bookkeeper.mledger.AsyncCallbacks.AddEntryCallback;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.ManagedLedgerConfig;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.bookkeeper.mledger.ManagedLedgerFactoryConfig;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.bookkeeper.mledger.impl.ManagedLedgerFactoryImpl;
import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver;

/**
 * What a broker of Apache Pulsar does with its topics, driven by another process: one JSON object a line on standard input,
 * one a line on standard output. Argument: by whose code BookKeeper's metadata are read, Pulsar's or BookKeeper's.
 *
 * <p>"do" names what to do, "topic" the managed ledger. What Pulsar refuses is answered with {"refused": ...}, the simple name
 * of the {@link ManagedLedgerException}; everything else that goes wrong ends the process. Nothing is closed at its end, as
 * with a broker that dies. No entries are cached: what is read comes from the bookies.
 */
public final class ManagedLedgerAgent {

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int SECONDS = 60;

    private final MetadataStoreExtended store;
    private final BookKeeper bookKeeper;
    private final Map<String, ManagedLedgerFactoryImpl> factories = new HashMap<>();
    private final Map<String, ManagedLedger> topics = new HashMap<>();

    private ManagedLedgerAgent(URI metadata, String driver) throws Exception {
        boolean isOxia = "oxia".equals(metadata.getScheme());
        String url = isOxia ? metadata.toString() : "zk:" + metadata.getAuthority();
        store = MetadataStoreExtended.create(url, MetadataStoreConfig.builder().build());
        ClientConfiguration configuration = new ClientConfiguration();
        switch (driver) {
            case "pulsar" -> {
                MetadataDrivers.registerClientDriver("metadata-store", PulsarMetadataClientDriver.class);
                configuration.setMetadataServiceUri(isOxia
                        ? "metadata-store:" + url + "/ledgers" // as brokers have it, with the root that it always is
                        : "metadata-store://" + metadata.getAuthority() + metadata.getPath());
                configuration.setProperty(PulsarMetadataClientDriver.METADATA_STORE_INSTANCE, store);
            }
            case "bookkeeper" -> configuration.setMetadataServiceUri(metadata.toString());
            default -> throw new IllegalArgumentException(driver);
        }
        configuration.setUseV2WireProtocol(true); // as brokers do
        configuration.setAddEntryTimeout(10);
        configuration.setReadEntryTimeout(10);
        bookKeeper = new BookKeeper(configuration);
    }

    public static void main(String[] args) {
        try {
            URI metadata = URI.create(System.getProperty("podkeeper.metadata"));
            serve(new ManagedLedgerAgent(metadata, args[0]));
            System.exit(0);
        } catch (Throwable e) {
            e.printStackTrace();
            System.exit(1); // the clients' threads would keep the process
        }
    }

    private static void serve(ManagedLedgerAgent agent) throws Exception {
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
        } catch (ManagedLedgerException e) {
            answer.put("refused", name(e));
        } catch (ExecutionException e) {
            if (!(e.getCause() instanceof ManagedLedgerException refused)) {
                throw e;
            }
            answer.put("refused", name(refused));
        }
        return answer;
    }

    private static String name(ManagedLedgerException refused) {
        refused.printStackTrace(); // for whoever did not expect it
        return refused.getClass().getSimpleName();
    }

    private void act(JsonNode request, ObjectNode answer) throws Exception {
        String name = request.get("topic").asText();
        ManagedLedger topic = topics.get(name);
        switch (request.get("do").asText()) {
            case "open" -> topics.put(name, factory(request).open(name, configuration(request)));
            case "append" -> append(topic, bodies(request), answer.putArray("positions"));
            case "read" -> read(cursor(topic, request), request.get("count").asInt(), answer.putArray("entries"));
            case "acknowledge" -> cursor(topic, request).delete(positions(request));
            case "acknowledge_up_to" -> cursor(topic, request).markDelete(positions(request).get(0));
            case "cursor" -> add(cursor(topic, request).getMarkDeletedPosition(), answer.putArray("mark_deleted"));
            case "statistics" -> answer.set("statistics", JSON.valueToTree(
                    topic.getManagedLedgerInternalStats(true).get(SECONDS, TimeUnit.SECONDS)));
            case "stored" -> answer.set("stored", JSON.valueToTree(factory(request).getManagedLedgerInfo(name)));
            case "property" -> topic.setProperty(request.get("name").asText(), request.get("value").asText());
            case "trim" -> {
                CompletableFuture<Void> trimmed = new CompletableFuture<>();
                topic.trimConsumedLedgersInBackground(trimmed);
                trimmed.get(SECONDS, TimeUnit.SECONDS);
            }
            case "offload" -> add(topic.offloadPrefix(topic.getLastConfirmedEntry()), answer.putArray("end"));
            case "terminate" -> add(topic.terminate(), answer.putArray("end"));
            case "close" -> topics.remove(name).close();
            default -> throw new IllegalArgumentException(request.toString());
        }
    }

    /** One for each compression of the metadata, on the same two clients. */
    private ManagedLedgerFactoryImpl factory(JsonNode request) throws Exception {
        String compression = request.path("compression").asText("NONE");
        ManagedLedgerFactoryImpl factory = factories.get(compression);
        if (factory == null) {
            ManagedLedgerFactoryConfig configuration = new ManagedLedgerFactoryConfig();
            configuration.setMaxCacheSize(0);
            configuration.setManagedLedgerInfoCompressionType(compression);
            configuration.setManagedLedgerInfoCompressionThresholdInBytes(0);
            configuration.setManagedCursorInfoCompressionType(compression);
            configuration.setManagedCursorInfoCompressionThresholdInBytes(0);
            factory = new ManagedLedgerFactoryImpl(store, bookKeeper, configuration);
            factories.put(compression, factory);
        }
        return factory;
    }

    /** Two copies, as brokers have it by default; what is consumed is not kept. */
    private static ManagedLedgerConfig configuration(JsonNode request) {
        ManagedLedgerConfig configuration = new ManagedLedgerConfig();
        configuration.setEnsembleSize(2).setWriteQuorumSize(2).setAckQuorumSize(2);
        configuration.setMetadataEnsembleSize(2).setMetadataWriteQuorumSize(2).setMetadataAckQuorumSize(2);
        configuration.setDigestType(DigestType.CRC32C).setPassword("");
        if (request.hasNonNull("entries")) {
            configuration.setMaxEntriesPerLedger(request.get("entries").asInt());
        }
        configuration.setRetentionTime(0, TimeUnit.SECONDS).setRetentionSizeInMB(0);
        if (request.path("offloads").asBoolean()) {
            configuration.setLedgerOffloader(new ForgettingOffloader());
        }
        return configuration;
    }

    private static ManagedCursor cursor(ManagedLedger topic, JsonNode request) throws Exception {
        return topic.openCursor(request.get("cursor").asText()); // the same one, if it is open
    }

    /** All at once; what is not acknowledged in the end is the failure of all. */
    private static void append(ManagedLedger topic, List<ByteBuf> entries, ArrayNode into) throws Exception {
        List<CompletableFuture<Position>> pending = new ArrayList<>();
        for (ByteBuf entry : entries) {
            CompletableFuture<Position> added = new CompletableFuture<>();
            pending.add(added);
            topic.asyncAddEntry(entry, new AddEntryCallback() {
                @Override
                public void addComplete(Position position, ByteBuf data, Object context) {
                    added.complete(position);
                }

                @Override
                public void addFailed(ManagedLedgerException e, Object context) {
                    added.completeExceptionally(e);
                }
            }, null);
        }
        for (CompletableFuture<Position> each : pending) {
            add(each.get(SECONDS, TimeUnit.SECONDS), into.addArray());
        }
    }

    private static void read(ManagedCursor cursor, int count, ArrayNode into) throws Exception {
        while (into.size() < count && cursor.hasMoreEntries()) {
            for (Entry entry : cursor.readEntries(count - into.size())) {
                ArrayNode told = into.addArray();
                add(entry.getPosition(), told);
                told.add(entry.getDataAndRelease());
            }
        }
    }

    /** "payloads": as they are; "messages": one entry that is a batch of them. */
    private static List<ByteBuf> bodies(JsonNode request) throws IOException {
        if (request.has("messages")) {
            return List.of(Messages.batch(request.get("messages"), request.get("compression").asText()));
        }
        List<ByteBuf> bodies = new ArrayList<>();
        for (JsonNode each : request.get("payloads")) {
            bodies.add(Messages.buffer(each.binaryValue()));
        }
        return bodies;
    }

    private static List<Position> positions(JsonNode request) {
        List<Position> positions = new ArrayList<>();
        for (JsonNode each : request.get("positions")) {
            positions.add(PositionFactory.create(each.get(0).asLong(), each.get(1).asLong()));
        }
        return positions;
    }

    private static void add(Position position, ArrayNode into) {
        into.add(position.getLedgerId()).add(position.getEntryId());
    }
}

package dev.podkeeper.oxia;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.oxia.client.api.GetResult;
import io.oxia.client.api.Notification;
import io.oxia.client.api.OxiaClientBuilder;
import io.oxia.client.api.SyncOxiaClient;
import io.oxia.client.api.Version;
import io.oxia.client.api.exceptions.KeyAlreadyExistsException;
import io.oxia.client.api.exceptions.UnexpectedVersionIdException;
import io.oxia.client.api.options.DeleteOption;
import io.oxia.client.api.options.GetOption;
import io.oxia.client.api.options.GetSequenceUpdatesOption;
import io.oxia.client.api.options.ListOption;
import io.oxia.client.api.options.PutOption;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * Oxia's client as an agent of another process: one JSON object a line on standard input, one a line on standard output.
 * Arguments: host:port, namespace, session time-out in ms, and maybe a token.
 *
 * <p>"do" names what to do. What the server refuses is answered with {"refused": ...}, the simple name of the exception;
 * everything else that goes wrong ends the process. Nothing is closed at its end, unless "close" was asked for.
 */
public final class OxiaAgent {

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int SECONDS = 20;
    private static final String MARK = "heard";

    private final SyncOxiaClient client;
    private final CountDownLatch heard = new CountDownLatch(1);
    private final BlockingQueue<String> told = new LinkedBlockingQueue<>();
    private final BlockingQueue<String> grown = new LinkedBlockingQueue<>();

    private OxiaAgent(SyncOxiaClient client) {
        this.client = client;
    }

    public static void main(String[] args) {
        try {
            OxiaClientBuilder builder = OxiaClientBuilder.create(args[0])
                    .namespace(args[1])
                    .clientIdentifier("podkeeper")
                    .sessionTimeout(Duration.ofMillis(Long.parseLong(args[2])));
            if (args.length > 3) {
                builder.authentication("io.oxia.client.auth.TokenAuthentication", "token:" + args[3]);
            }
            OxiaAgent agent = new OxiaAgent(builder.syncClient());
            PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                out.println(JSON.writeValueAsString(agent.answer(JSON.readTree(line))));
            }
            System.exit(0);
        } catch (Throwable e) {
            e.printStackTrace();
            System.exit(1); // the client's threads would keep the process
        }
    }

    private ObjectNode answer(JsonNode request) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        try {
            act(request, answer);
        } catch (UnexpectedVersionIdException | KeyAlreadyExistsException e) {
            answer.put("refused", e.getClass().getSimpleName());
        }
        return answer;
    }

    private void act(JsonNode request, ObjectNode answer) throws Exception {
        String key = request.path("key").asText();
        String end = request.path("end").asText();
        switch (request.get("do").asText()) {
            case "put" -> {
                var put = client.put(key, request.path("value").asText().getBytes(StandardCharsets.UTF_8), puts(request));
                answer.put("key", put.key());
                describe(put.version(), answer);
            }
            case "get" -> {
                GetResult found = client.get(key, gets(request));
                if (found != null) {
                    describe(found, answer);
                }
            }
            case "delete" -> answer.put("deleted", client.delete(key, request.has("version")
                    ? Set.of(DeleteOption.IfVersionIdEquals(request.get("version").asLong()))
                    : Set.of()));
            case "delete_range" -> client.deleteRange(key, end);
            case "list" -> {
                ArrayNode keys = answer.putArray("keys");
                Set<ListOption> options = request.has("index")
                        ? Set.of(ListOption.UseIndex(request.get("index").asText()))
                        : Set.of();
                client.list(key, end, options).forEach(keys::add);
            }
            case "scan" -> {
                ArrayNode records = answer.putArray("records");
                try (var found = client.rangeScan(key, end)) {
                    found.forEach(each -> describe(each, records.addObject()));
                }
            }
            case "listen" -> {
                client.notifications(this::note);
                do { // which begins when the server has answered, and does not say so
                    client.put(MARK, new byte[0]);
                } while (!heard.await(100, TimeUnit.MILLISECONDS));
            }
            case "told" -> answer.put("told", told.poll(SECONDS, TimeUnit.SECONDS));
            case "follow" -> client.getSequenceUpdates(
                    key, grown::add, Set.of(GetSequenceUpdatesOption.PartitionKey("p")));
            case "grown" -> answer.put("grown", grown.poll(SECONDS, TimeUnit.SECONDS));
            case "close" -> client.close();
            default -> throw new IllegalArgumentException(request.toString());
        }
    }

    private void note(Notification notice) {
        if (notice.key().equals(MARK)) {
            heard.countDown();
            return;
        }
        told.add(notice.getClass().getSimpleName() + " " + notice.key());
    }

    private static Set<PutOption> puts(JsonNode request) {
        Set<PutOption> options = new HashSet<>();
        if (request.path("new").asBoolean()) {
            options.add(PutOption.IfRecordDoesNotExist);
        }
        if (request.has("version")) {
            options.add(PutOption.IfVersionIdEquals(request.get("version").asLong()));
        }
        if (request.path("ephemeral").asBoolean()) {
            options.add(PutOption.AsEphemeralRecord);
        }
        if (request.has("deltas")) {
            List<Long> deltas = new ArrayList<>();
            request.get("deltas").forEach(each -> deltas.add(each.asLong()));
            options.add(PutOption.PartitionKey("p"));
            options.add(PutOption.SequenceKeysDeltas(deltas));
        }
        if (request.has("index")) {
            options.add(PutOption.SecondaryIndex(request.get("index").asText(), request.get("secondary").asText()));
        }
        return options;
    }

    private static Set<GetOption> gets(JsonNode request) {
        Set<GetOption> options = new HashSet<>();
        switch (request.path("compare").asText()) {
            case "floor" -> options.add(GetOption.ComparisonFloor);
            case "ceiling" -> options.add(GetOption.ComparisonCeiling);
            case "lower" -> options.add(GetOption.ComparisonLower);
            case "higher" -> options.add(GetOption.ComparisonHigher);
            default -> options.add(GetOption.ComparisonEqual);
        }
        return options;
    }

    private static void describe(GetResult found, ObjectNode answer) {
        answer.put("key", found.key());
        answer.put("value", new String(found.value(), StandardCharsets.UTF_8));
        describe(found.version(), answer);
    }

    private static void describe(Version version, ObjectNode answer) {
        answer.put("version", version.versionId());
        answer.put("writes", version.modificationsCount());
        answer.put("session", version.sessionId().orElse(null));
        answer.put("client", version.clientIdentifier().orElse(null));
    }
}

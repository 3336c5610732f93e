package dev.podkeeper.pulsar;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/**
 * Loads of pulsar-perf's kind for another process: one JSON object a line on standard input, one a line on standard output.
 * Argument: the broker's address. What goes wrong ends the process.
 *
 * <p>Batches are those of Pulsar's defaults. With a rate, the latency of a message counts from the moment when it was due, so
 * that whoever has to wait for a stall is charged with it.
 */
public final class LoadAgent {

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long SECOND = TimeUnit.SECONDS.toNanos(1);

    private final PulsarClient client;

    private LoadAgent(String url) throws PulsarClientException {
        client = PulsarClient.builder().serviceUrl(url).operationTimeout(60, TimeUnit.SECONDS).build();
    }

    public static void main(String[] args) {
        try {
            PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            LoadAgent agent = new LoadAgent(args[0]);
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                JsonNode request = JSON.readTree(line);
                ObjectNode answer = JSON.createObjectNode();
                if (request.get("do").asText().equals("produce")) {
                    agent.produce(request, answer);
                } else {
                    agent.consume(request, answer);
                }
                out.println(JSON.writeValueAsString(answer));
            }
            System.exit(0);
        } catch (Throwable e) {
            e.printStackTrace();
            System.exit(1); // the client's threads would keep the process
        }
    }

    /** Messages in turn to each of the "topics" for some "seconds": so many a second at the "rate", or as many as there can be. */
    private void produce(JsonNode request, ObjectNode answer) throws Exception {
        reader(request).close(); // from now on nothing is deleted before it is read
        List<Producer<byte[]>> producers = new ArrayList<>();
        for (JsonNode topic : request.get("topics")) {
            producers.add(client.newProducer(Schema.BYTES)
                    .topic(topic.asText())
                    .maxPendingMessages(1000)
                    .blockIfQueueFull(true)
                    .sendTimeout(0, TimeUnit.SECONDS)
                    .create());
        }
        byte[] payload = new byte[request.get("size").asInt()];
        new Random(1).nextBytes(payload); // nothing on the way can make it smaller
        int rate = request.get("rate").asInt();
        Latencies latencies = new Latencies();
        long began = System.nanoTime();
        long end = began + SECOND * request.get("seconds").asInt();
        for (long number = 0; System.nanoTime() < end; number++) {
            long due = rate == 0 ? System.nanoTime() : began + number * SECOND / rate;
            while (rate != 0 && System.nanoTime() < due) {
                LockSupport.parkNanos(due - System.nanoTime());
            }
            producers.get((int) (number % producers.size())).sendAsync(payload).whenComplete((id, error) ->
                    latencies.add(System.nanoTime() - due, error));
        }
        for (Producer<byte[]> each : producers) {
            each.flush();
        }
        latencies.tell(answer);
        answer.put("took", (System.nanoTime() - began) / (double) SECOND);
        for (Producer<byte[]> each : producers) {
            each.close();
        }
    }

    private Consumer<byte[]> reader(JsonNode request) throws PulsarClientException {
        List<String> topics = new ArrayList<>();
        request.get("topics").forEach(topic -> topics.add(topic.asText()));
        return client.newConsumer(Schema.BYTES)
                .topics(topics)
                .subscriptionName("reader")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe();
    }

    /** All "count" messages that the "topics" hold. */
    private void consume(JsonNode request, ObjectNode answer) throws Exception {
        long began = System.nanoTime();
        try (Consumer<byte[]> consumer = reader(request)) {
            for (long left = request.get("count").asLong(); left > 0; left--) {
                Message<byte[]> message = consumer.receive(60, TimeUnit.SECONDS);
                if (message == null) {
                    throw new IllegalStateException(left + " messages are missing");
                }
                consumer.acknowledgeAsync(message);
            }
            answer.put("took", (System.nanoTime() - began) / (double) SECOND);
        }
    }

    /** Of all messages that were acknowledged. */
    private static final class Latencies {

        private long[] all = new long[1 << 20]; // all of it: under the lock
        private int count;
        private Throwable failure;

        synchronized void add(long nanoseconds, Throwable error) {
            failure = failure != null ? failure : error;
            if (count == all.length) {
                all = Arrays.copyOf(all, 2 * count);
            }
            all[count++] = nanoseconds;
        }

        synchronized void tell(ObjectNode answer) {
            if (failure != null) {
                throw new IllegalStateException(failure);
            }
            Arrays.sort(all, 0, count);
            answer.put("count", count);
            answer.put("p50_ms", all[count / 2] / 1e6);
            answer.put("p99_ms", all[(int) (count * 0.99)] / 1e6);
        }
    }
}

package dev.podkeeper.pulsar;

import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.google.protobuf.Timestamp;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * The client of Apache Pulsar, driven by another process: one JSON object a line on standard input, one a line on standard
 * output. Argument: the broker's address.
 *
 * <p>"do" names what to do. Messages are numbered, and a number and a size say what one holds ({@link #text}), so numbers are
 * all that is told of them. What Pulsar refuses is answered with {"refused": ...}, the simple name of the exception;
 * everything else that goes wrong, a message that holds something else too, ends the process. Nothing is closed at its end.
 */
public final class ClientAgent {

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final TypeReference<Map<String, Object>> OPTIONS = new TypeReference<>() {};
    private static final int[] POWERS = {100_000_000, 10_000_000, 1_000_000, 100_000, 10_000, 1_000, 100, 10, 1};

    private final PulsarClient client;
    private final Map<String, Load> loads = new HashMap<>();
    private final Map<String, Consumer<?>> consumers = new HashMap<>();
    private final Map<String, Transaction> transactions = new HashMap<>();

    private ClientAgent(String url) throws PulsarClientException {
        client = PulsarClient.builder()
                .serviceUrl(url)
                .enableTransaction(true)
                .operationTimeout(240, TimeUnit.SECONDS)
                .maxBackoffInterval(1, TimeUnit.SECONDS) // a broker that comes back is found soon
                .build();
    }

    public static void main(String[] args) {
        try {
            PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            ClientAgent agent = new ClientAgent(args[0]);
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
            act(request, request.path("name").asText(), answer);
        } catch (PulsarClientException e) {
            answer.put("refused", name(e));
        } catch (ExecutionException e) {
            if (!(e.getCause() instanceof PulsarClientException refused)) {
                throw e;
            }
            answer.put("refused", name(refused));
        }
        return answer;
    }

    private static String name(PulsarClientException refused) {
        refused.printStackTrace(); // for whoever did not expect it
        return refused.getClass().getSimpleName();
    }

    private void act(JsonNode request, String name, ObjectNode answer) throws Exception {
        switch (request.get("do").asText()) {
            case "produce" -> produce(request, answer.putArray("ids"));
            case "load" -> loads.put(name, new Load(producer(request, Schema.BYTES), request));
            case "progress" -> answer.put("acknowledged",
                    loads.get(name).progress(request.get("more").asInt(), request.get("seconds").asInt()));
            case "unload" -> loads.remove(name).end(answer);
            case "subscribe" -> consumers.put(name, subscribed(request, name));
            case "receive" -> receive(consumers.get(name), request, answer.putArray("received"));
            case "redeliver" -> consumers.get(name).redeliverUnacknowledgedMessages();
            case "close" -> consumers.remove(name).close();
            case "begin" -> transactions.put(name, client.newTransaction()
                    .withTransactionTimeout(5, TimeUnit.MINUTES).build().get());
            case "commit" -> transactions.remove(name).commit().get();
            case "abort" -> transactions.remove(name).abort().get();
            case "produce_records" -> produceRecords(request);
            default -> throw new IllegalArgumentException(request.toString());
        }
    }

    // --- producers ---

    /** "producer" has options by the names of Pulsar's ProducerConfigurationData. */
    private <T> Producer<T> producer(JsonNode request, Schema<T> schema) throws PulsarClientException {
        return client.newProducer(schema)
                .topic(request.get("topic").asText())
                .blockIfQueueFull(true)
                .sendTimeout(0, TimeUnit.SECONDS) // it tries until it is told to end
                .loadConf(options(request.path("producer")))
                .create();
    }

    private static Map<String, Object> options(JsonNode given) {
        return given.isMissingNode() ? Map.of() : JSON.convertValue(given, OPTIONS);
    }

    /** Messages from "first" on, all at once; ends when all are acknowledged. Tells their ids in that order. */
    private void produce(JsonNode request, ArrayNode ids) throws Exception {
        try (Producer<byte[]> producer = producer(request, Schema.BYTES)) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            int first = request.get("first").asInt();
            for (int number = first; number < first + request.get("count").asInt(); number++) {
                TypedMessageBuilder<byte[]> message = request.has("transaction")
                        ? producer.newMessage(transactions.get(request.get("transaction").asText()))
                        : producer.newMessage();
                fill(message, number, request);
                if (request.has("delay_ms")) {
                    message.deliverAfter(request.get("delay_ms").asLong(), TimeUnit.MILLISECONDS);
                }
                sent.add(message.sendAsync());
            }
            producer.flush();
            for (CompletableFuture<MessageId> each : sent) {
                MessageIdAdv id = (MessageIdAdv) each.get();
                ids.addArray().add(id.getLedgerId()).add(id.getEntryId()).add(id.getBatchIndex());
            }
        }
    }

    /** "sizes" are taken in turn; with "keys" there are so many keys, taken in turn too. */
    private static void fill(TypedMessageBuilder<byte[]> message, int number, JsonNode request) {
        JsonNode sizes = request.get("sizes");
        message.value(text(number, sizes.get(number % sizes.size()).asInt()));
        if (request.has("keys")) {
            message.key("key-" + number % request.get("keys").asInt());
        }
    }

    /** What a message holds: its number and the place in it, in turn, of nine digits each. */
    private static byte[] text(int number, int size) {
        byte[] text = new byte[size];
        for (int at = 0; at < size; at++) {
            int value = at % 20 < 10 ? number : at / 20;
            text[at] = (byte) (at % 10 == 9 ? ' ' : '0' + value / POWERS[at % 10] % 10);
        }
        return text;
    }

    /** Messages from 0 on, one after the other, until it is told to end; so many a second at most. */
    private static final class Load {

        private final Producer<byte[]> producer;
        private final Thread thread;
        private volatile boolean ending;
        private int acknowledged; // this and what follows: under the lock
        private Throwable failure;

        Load(Producer<byte[]> producer, JsonNode request) {
            this.producer = producer;
            thread = new Thread(() -> run(request));
            thread.setDaemon(true);
            thread.start();
        }

        private void run(JsonNode request) {
            long pause = TimeUnit.SECONDS.toNanos(1) / request.get("rate").asInt();
            long due = System.nanoTime();
            for (int number = 0; !ending; number++) {
                TypedMessageBuilder<byte[]> message = producer.newMessage();
                fill(message, number, request);
                int sent = number;
                message.sendAsync().whenComplete((id, error) -> ended(sent, error));
                due = Math.max(due + pause, System.nanoTime() - TimeUnit.MILLISECONDS.toNanos(100));
                while (System.nanoTime() < due && !ending) {
                    LockSupport.parkNanos(due - System.nanoTime());
                }
            }
        }

        private synchronized void ended(int number, Throwable error) {
            if (error != null || number != acknowledged) {
                failure = error != null ? error : new IllegalStateException("acknowledged out of order: " + number);
            } else {
                acknowledged = number + 1;
            }
            notifyAll();
        }

        /** Returns when so many more are acknowledged, or the time is over. */
        synchronized int progress(int more, int seconds) throws InterruptedException {
            int enough = acknowledged + more;
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
            while (failure == null && acknowledged < enough && System.nanoTime() < end) {
                TimeUnit.NANOSECONDS.timedWait(this, end - System.nanoTime());
            }
            if (failure != null) {
                throw new IllegalStateException(failure);
            }
            return acknowledged;
        }

        void end(ObjectNode answer) throws Exception {
            ending = true;
            thread.join();
            producer.flush();
            producer.close();
            answer.put("acknowledged", progress(0, 0));
        }
    }

    // --- consumers ---

    /** "consumer" has options by the names of Pulsar's ConsumerConfigurationData. "records": of any schema. */
    private Consumer<?> subscribed(JsonNode request, String name) throws PulsarClientException {
        Schema<?> schema = request.path("records").asBoolean() ? Schema.AUTO_CONSUME() : Schema.BYTES;
        return client.newConsumer(schema)
                .topic(request.get("topic").asText())
                .consumerName(name)
                .loadConf(options(request.path("consumer")))
                .subscribe();
    }

    /**
     * Up to "count" messages, fewer if "quiet_ms" pass without one. "acknowledge": each, up_to (the last), none. Tells number
     * and key of each; of a record its fields.
     */
    private void receive(Consumer<?> consumer, JsonNode request, ArrayNode received) throws Exception {
        int quiet = request.get("quiet_ms").asInt();
        String how = request.get("acknowledge").asText();
        Transaction transaction = transactions.get(request.path("transaction").asText());
        List<CompletableFuture<Void>> acknowledged = new ArrayList<>();
        MessageId last = null;
        while (received.size() < request.get("count").asInt()) {
            Message<?> message = consumer.receive(quiet, TimeUnit.MILLISECONDS);
            if (message == null) {
                break;
            }
            last = message.getMessageId();
            if (message.getValue() instanceof GenericRecord record) {
                ObjectNode fields = received.addObject();
                record.getFields().forEach(field -> fields.putPOJO(field.getName(), record.getField(field)));
            } else {
                received.addArray().add(number(message.getData())).add(message.getKey());
            }
            if (how.equals("each")) {
                acknowledged.add(transaction == null
                        ? consumer.acknowledgeAsync(last)
                        : consumer.acknowledgeAsync(last, transaction));
            }
        }
        if (how.equals("up_to") && last != null) {
            consumer.acknowledgeCumulative(last);
        }
        for (CompletableFuture<Void> each : acknowledged) {
            each.get();
        }
    }

    private static int number(byte[] text) {
        int number = Integer.parseInt(new String(text, 0, 9, StandardCharsets.US_ASCII));
        if (!Arrays.equals(text, text(number, text.length))) {
            throw new IllegalStateException("message " + number + " holds something else");
        }
        return number;
    }

    // --- records ---

    /** The first kind of record. */
    public static final class Reading {
        public int number;
        public String sensor;
    }

    /** The same, and one field more, which older records have not. */
    public static final class NewReading {
        public int number;
        public String sensor;
        public Integer quality;
    }

    /** A kind that has nothing to do with these. */
    public static final class Other {
        public String number;
    }

    private void produceRecords(JsonNode request) throws PulsarClientException {
        int number = request.get("number").asInt();
        switch (request.get("kind").asText()) {
            case "Reading" -> {
                Reading record = new Reading();
                record.number = number;
                record.sensor = "s" + number;
                send(request, Schema.AVRO(Reading.class), record);
            }
            case "NewReading" -> {
                NewReading record = new NewReading();
                record.number = number;
                record.sensor = "s" + number;
                record.quality = number * 2;
                send(request, Schema.AVRO(NewReading.class), record);
            }
            case "Json" -> {
                Reading record = new Reading();
                record.number = number;
                record.sensor = "s" + number;
                send(request, Schema.JSON(Reading.class), record);
            }
            case "Native" -> send(request, Schema.PROTOBUF_NATIVE(Timestamp.class),
                    Timestamp.newBuilder().setSeconds(number).build());
            case "Number" -> send(request, Schema.INT32, number);
            default -> send(request, Schema.AVRO(Other.class), new Other());
        }
    }

    private <T> void send(JsonNode request, Schema<T> schema, T record) throws PulsarClientException {
        try (Producer<T> producer = producer(request, schema)) {
            producer.send(record);
        }
    }
}

package dev.podkeeper.interop;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.PrintStream;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.DistributedLogConfiguration;
import org.apache.distributedlog.LogRecord;
import org.apache.distributedlog.LogRecordSet;
import org.apache.distributedlog.LogRecordWithDLSN;
import org.apache.distributedlog.LogSegmentMetadata;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.LogReader;
import org.apache.distributedlog.api.LogWriter;
import org.apache.distributedlog.api.namespace.Namespace;
import org.apache.distributedlog.api.namespace.NamespaceBuilder;
import org.apache.distributedlog.exceptions.EndOfStreamException;
import org.apache.distributedlog.impl.metadata.BKDLConfig;
import org.apache.distributedlog.io.CompressionCodec;
import org.apache.distributedlog.metadata.DLMetadata;

/**
 * Writes logs of Apache DistributedLog, and into a file what its own reader reads of them: one JSON object a log. Arguments:
 * the namespace's path in ZooKeeper, the file.
 *
 * <p>Each log has two log segments, and records of all kinds in every one of them: single ones and bulks, empty ones, one of
 * the greatest size, record sets with and without compression. Control records come from the library, for every flush.
 */
public final class DistributedLogs {

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int LARGEST = LogRecord.MAX_LOGRECORD_SIZE - 20;
    private static final int BULK = 400;
    private static final int SET = 50;

    private final Random random = new Random(5);
    private long transaction = 100;

    private final PrintStream out;

    private DistributedLogs(PrintStream out) {
        this.out = out;
    }

    public static void main(String[] args) {
        try (PrintStream out = new PrintStream(args[1], StandardCharsets.UTF_8)) {
            URI metadata = URI.create(Setting.required("podkeeper.metadata"));
            URI uri = URI.create("distributedlog://" + metadata.getAuthority() + args[0]);
            DLMetadata.create(new BKDLConfig(metadata.getAuthority(), metadata.getPath())).create(uri);
            DistributedLogs logs = new DistributedLogs(out);
            logs.log(uri, "plain", configuration());
            logs.log(uri, "lz4", configuration().setCompressionType("lz4"));
            logs.log(uri, "uncounted", configuration().setEnableRecordCounts(false));
            logs.log(uri, "bare", configuration().setDLLedgerMetadataLayoutVersion(3));
            logs.log(uri, "sealed", configuration());
            logs.log(uri, "open", configuration());
            out.close();
            System.exit(0); // without closing the last writer, as one that is at work
        } catch (Throwable e) {
            e.printStackTrace();
            System.exit(1);
        }
    }

    /** Entries of 64 KB: many records in each. */
    private static DistributedLogConfiguration configuration() {
        return new DistributedLogConfiguration().setOutputBufferSize(64 * 1024).setPeriodicFlushFrequencyMilliSeconds(0)
                .setImmediateFlushEnabled(false).setLockTimeout(30);
    }

    private void log(URI uri, String name, DistributedLogConfiguration configuration) throws Exception {
        Namespace namespace = NamespaceBuilder.newBuilder().conf(configuration).uri(uri).clientId("interop").build();
        namespace.createLog(name);
        DistributedLogManager log = namespace.openLog(name);
        int count = segment(log, "first");
        count += segment(log, name);
        ObjectNode told = JSON.createObjectNode().put("log", name);
        read(log, count, name.equals("sealed"), told.putArray("records"));
        ArrayNode segments = told.putArray("segments");
        for (LogSegmentMetadata each : log.getLogSegments()) {
            segments.addArray().add(each.getLogSegmentId()).add(each.getLogSegmentSequenceNumber())
                    .add(each.getStartSequenceId()).add(each.isInProgress());
        }
        out.println(JSON.writeValueAsString(told));
    }

    /** Writes a log segment, whose end the name of its log decides; returns how many records it has. */
    private int segment(DistributedLogManager log, String end) throws Exception {
        LogWriter writer = log.openLogWriter();
        writer.write(new LogRecord(transaction++, new byte[0]));
        List<LogRecord> bulk = new ArrayList<>();
        for (int each = 0; each < BULK; each++) {
            bulk.add(new LogRecord(transaction++, bytes(each % 7 == 0 ? 0 : each)));
        }
        writer.writeBulk(bulk);
        writer.flush();
        writer.commit();
        writer.write(new LogRecord(transaction++, bytes(LARGEST)));
        for (CompressionCodec.Type type : List.of(CompressionCodec.Type.NONE, CompressionCodec.Type.LZ4)) {
            writer.write(recordSet(type, SET));
            writer.write(recordSet(type, 1));
        }
        writer.write(new LogRecord(transaction++, bytes(10)));
        writer.flush();
        writer.commit();
        switch (end) {
            case "sealed" -> {
                writer.markEndOfStream();
                writer.close();
            }
            case "open" -> { }
            default -> writer.close();
        }
        return BULK + 2 * SET + 5;
    }

    private byte[] bytes(int size) {
        byte[] bytes = new byte[size];
        random.nextBytes(bytes);
        for (int each = 0; each < size / 2; each++) {
            bytes[each] = 'a'; // the first half can be compressed
        }
        return bytes;
    }

    private LogRecord recordSet(CompressionCodec.Type type, int count) throws Exception {
        LogRecordSet.Writer set = LogRecordSet.newWriter(4096, type);
        for (int each = 0; each < count; each++) {
            set.writeRecord(ByteBuffer.wrap(bytes(each % 5 == 0 ? 0 : 20 * each)), new CompletableFuture<>());
        }
        LogRecord record = new LogRecord(transaction++, set.getBuffer());
        record.setRecordSet();
        return record;
    }

    private static void read(DistributedLogManager log, int count, boolean sealed, ArrayNode into) throws Exception {
        LogReader reader = log.getInputStream(DLSN.InitialDLSN);
        while (into.size() < count) {
            LogRecordWithDLSN record = reader.readNext(false);
            if (record != null) {
                DLSN place = record.getDlsn();
                into.addArray().add(record.getTransactionId()).add(record.getPayload()).add(place.getLogSegmentSequenceNo())
                        .add(place.getEntryId()).add(place.getSlotId()).add(record.getPositionWithinLogSegment())
                        .add(record.getSequenceId());
            }
        }
        try {
            LogRecordWithDLSN more;
            do { // until the reader has come to the mark
                more = reader.readNext(!sealed);
            } while (more == null && sealed);
            if (more != null) {
                throw new AssertionError("behind the last record: " + more);
            }
        } catch (EndOfStreamException e) {
            if (!sealed) {
                throw e;
            }
        }
        reader.close();
    }
}

package dev.podkeeper.bench;

import com.beust.jcommander.IValueValidator;
import com.beust.jcommander.Parameter;
import com.beust.jcommander.ParameterException;
import java.util.ArrayList;
import java.util.List;
import org.apache.bookkeeper.client.BookKeeper.DigestType;

/** The command line of the driver. Sizes are bytes, times are seconds, rates are entries per second. */
final class Options {

    @Parameter(description = "add | read | tail | recover")
    List<String> command = new ArrayList<>();

    @Parameter(names = "--metadata", required = true, description = "metadata service URI, zk+hierarchical://host:port/ledgers")
    String metadata;

    @Parameter(names = "--protocol", description = "v2 or v3")
    String protocol = "v2";

    @Parameter(names = "--digest", description = "CRC32C, CRC32, MAC or DUMMY")
    DigestType digest = DigestType.CRC32C;

    @Parameter(names = "--ensemble") int ensemble = 1;
    @Parameter(names = "--write-quorum") int writeQuorum = 1;
    @Parameter(names = "--ack-quorum") int ackQuorum = 1;

    @Parameter(names = "--size", validateValueWith = NotNegative.class, description = "payload bytes of an entry")
    int size = 1024;

    @Parameter(names = "--ledgers", validateValueWith = Positive.class, description = "ledgers used in turn")
    int ledgers = 1;

    @Parameter(names = "--window", validateValueWith = Positive.class, description = "requests in flight")
    int window = 4000;

    @Parameter(names = "--rate", validateValueWith = NotNegative.class,
            description = "requests per second sent on a fixed schedule; 0: as fast as the window lets")
    int rate;

    @Parameter(names = "--warmup", validateValueWith = NotNegative.class, description = "seconds before the measured time")
    int warmup = 3;

    @Parameter(names = "--duration", validateValueWith = NotNegative.class, description = "measured seconds")
    int duration = 10;

    @Parameter(names = "--entries",
            description = "stop after that many entries instead of after --duration; warm-up is then left out")
    long entries;

    @Parameter(names = "--ledger-file", description = "add: write ledger ids and last entries there and keep the ledgers;"
            + " read, recover: do so with what it names")
    String ledgerFile;

    @Parameter(names = "--warmup-ledgers", validateValueWith = Positive.class,
            description = "recover: so many of the ledgers first, before it is measured")
    int warmupLedgers = 1;

    @Parameter(names = "--recovery-read-batch", validateValueWith = Positive.class, description = "recoveryReadBatchSize")
    int recoveryReadBatch = 1;

    @Parameter(names = "--read-kind", description = "single: one asyncRead per entry; batch: asyncBatchRead of --batch entries"
            + " (v2), asyncRead of a range of --batch entries (v3, where the client has no batch read)")
    String readKind = "single";

    @Parameter(names = "--batch", validateValueWith = Positive.class, description = "entries of one batch read")
    int batch = 100;

    @Parameter(names = "--order", description = "sequential or random")
    String order = "sequential";

    @Parameter(names = "--passes", validateValueWith = Positive.class,
            description = "read: times to read everything; with 1 a cold store is read cold")
    int passes = Integer.MAX_VALUE;

    @Parameter(names = "--bookie-pid", description = "process whose CPU time and memory are reported; its children count")
    long bookiePid;

    @Parameter(names = "--label", description = "copied into the output")
    String label = "";

    @Parameter(names = {"-h", "--help"}, help = true)
    boolean help;

    void check() {
        if (command.size() != 1 || !List.of("add", "read", "tail", "recover").contains(command.get(0))) {
            throw new ParameterException("give one command: add, read, tail or recover");
        }
        oneOf("--protocol", protocol, "v2", "v3");
        oneOf("--read-kind", readKind, "single", "batch");
        oneOf("--order", order, "sequential", "random");
        if (command.get(0).equals("tail") && rate == 0) {
            throw new ParameterException("tail needs --rate: latency of a full window says nothing about tailing");
        }
        if (List.of("read", "recover").contains(command.get(0)) && ledgerFile == null) {
            throw new ParameterException(command.get(0) + " needs --ledger-file, as written by add --ledger-file");
        }
    }

    private static void oneOf(String name, String value, String... allowed) {
        if (!List.of(allowed).contains(value)) {
            throw new ParameterException(name + " is " + value + "; allowed: " + String.join(", ", allowed));
        }
    }

    /** Refuses values below one. */
    public static final class Positive implements IValueValidator<Integer> {
        @Override
        public void validate(String name, Integer value) {
            if (value < 1) {
                throw new ParameterException(name + " is " + value + "; at least 1 is needed");
            }
        }
    }

    /** Refuses values below zero. */
    public static final class NotNegative implements IValueValidator<Integer> {
        @Override
        public void validate(String name, Integer value) {
            if (value < 0) {
                throw new ParameterException(name + " is " + value + "; it cannot be negative");
            }
        }
    }
}

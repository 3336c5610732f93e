package dev.podkeeper.bench;

import com.beust.jcommander.JCommander;
import com.beust.jcommander.ParameterException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Map;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Drives a bookie with the stock client and prints one JSON object on standard output.
 *
 * <p>Exit codes: 0 measured, 1 a request failed (the JSON says which), 2 wrong command line.
 */
public final class Main {

    private Main() {}

    public static void main(String[] args) throws Exception {
        Options options = new Options();
        JCommander parser = JCommander.newBuilder().addObject(options).programName("podkeeper-bench")
                .allowParameterOverwriting(true).build();
        try {
            parser.parse(args);
            if (options.help) {
                parser.usage();
                return;
            }
            options.check();
        } catch (ParameterException e) {
            System.err.println(e.getMessage());
            System.exit(2);
        }
        System.exit(run(options));
    }

    private static int run(Options options) throws Exception {
        // The stock settings, but for the limit of 5000 requests in flight, which is the driver's window here.
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(options.metadata);
        configuration.setUseV2WireProtocol(options.protocol.equals("v2"));
        configuration.setBatchReadEnabled(true);
        configuration.setThrottleValue(0);
        configuration.setRecoveryReadBatchSize(options.recoveryReadBatch);
        Meter meter = new Meter(options);
        try (BookKeeper client = new BookKeeper(configuration)) {
            switch (options.command.get(0)) {
                case "add" -> new AddLoad(options, client, meter).run();
                case "tail" -> new TailLoad(options, client, meter).run();
                case "recover" -> new RecoverLoad(options, client, meter).run();
                default -> new ReadLoad(options, client, meter).run();
            }
        }
        Map<String, Object> result = meter.result();
        System.out.println(new ObjectMapper().writeValueAsString(result));
        return meter.hasFailed() ? 1 : 0;
    }
}

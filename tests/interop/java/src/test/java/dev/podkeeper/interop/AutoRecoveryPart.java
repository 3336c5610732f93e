package dev.podkeeper.interop;

import java.io.File;
import java.util.concurrent.CountDownLatch;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.meta.LedgerUnderreplicationManager;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.bookkeeper.replication.AuditorElector;
import org.apache.bookkeeper.replication.ReplicationWorker;

/**
 * One part of auto-recovery alone, which the stock daemon always runs together, until SIGTERM.
 *
 * <p>Arguments: {@code auditor FILE BOOKIE_ID}, {@code worker FILE}, or {@code lock FILE LEDGER_ID}; FILE is a configuration.
 * The last one takes the lock of a ledger as a worker does, and does nothing else. "ready" is printed once it works.
 */
public final class AutoRecoveryPart {

    private AutoRecoveryPart() {}

    public static void main(String[] args) throws Exception {
        ServerConfiguration configuration = new ServerConfiguration();
        configuration.loadConf(new File(args[1]).toURI().toURL());
        switch (args[0]) {
            case "auditor" -> audit(configuration, args[2]);
            case "worker" -> work(configuration);
            case "lock" -> lock(configuration, Long.parseLong(args[2]));
            default -> throw new IllegalArgumentException(args[0]);
        }
        System.out.println("ready");
        new CountDownLatch(1).await();
    }

    private static void audit(ServerConfiguration configuration, String bookieId) throws Exception {
        AuditorElector elector = new AuditorElector(bookieId, configuration);
        elector.start().get();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                elector.shutdown();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }));
    }

    private static void work(ServerConfiguration configuration) throws Exception {
        ReplicationWorker worker = new ReplicationWorker(configuration);
        worker.start();
        Runtime.getRuntime().addShutdownHook(new Thread(worker::shutdown));
    }

    private static void lock(ServerConfiguration configuration, long ledgerId) throws Exception {
        MetadataDrivers.runFunctionWithLedgerManagerFactory(configuration, factory -> {
            try {
                LedgerUnderreplicationManager marks = factory.newLedgerUnderreplicationManager();
                marks.acquireUnderreplicatedLedger(ledgerId);
                System.out.println("ready");
                new CountDownLatch(1).await();
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
            return null;
        });
    }
}

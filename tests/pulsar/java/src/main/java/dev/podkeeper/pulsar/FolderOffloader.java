package dev.podkeeper.pulsar;

import io.netty.buffer.Unpooled;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.impl.LedgerEntriesImpl;
import org.apache.bookkeeper.client.impl.LedgerEntryImpl;
import org.apache.bookkeeper.common.util.OrderedScheduler;
import org.apache.bookkeeper.mledger.LedgerOffloader;
import org.apache.bookkeeper.mledger.LedgerOffloaderFactory;
import org.apache.bookkeeper.mledger.LedgerOffloaderStats;
import org.apache.bookkeeper.mledger.offload.OffloadUtils;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;

/** Keeps each ledger in a file of the folder that the policies' fileSystemURI names: an offloader without a cloud. */
public final class FolderOffloader implements LedgerOffloader {

    private static final String DRIVER = "filesystem";
    private static final int STEP = 100;

    private final OffloadPoliciesImpl policies;
    private final Path folder;

    private FolderOffloader(OffloadPoliciesImpl policies) {
        this.policies = policies;
        folder = Path.of(URI.create(policies.getFileSystemURI()));
    }

    /** What the broker looks for. */
    public static final class Factory implements LedgerOffloaderFactory<FolderOffloader> {
        @Override
        public boolean isDriverSupported(String driver) {
            return driver.equals(DRIVER);
        }

        @Override
        public FolderOffloader create(OffloadPoliciesImpl policies, Map<String, String> user, OrderedScheduler scheduler) {
            return new FolderOffloader(policies);
        }

        @Override
        public FolderOffloader create(OffloadPoliciesImpl policies, Map<String, String> user, OrderedScheduler scheduler,
                LedgerOffloaderStats statistics) {
            return new FolderOffloader(policies);
        }

        @Override
        public void close() {}
    }

    @Override
    public String getOffloadDriverName() {
        return DRIVER;
    }

    @Override
    public OffloadPoliciesImpl getOffloadPolicies() {
        return policies;
    }

    @Override
    public void close() {}

    private Path file(UUID uuid) {
        return folder.resolve(uuid.toString());
    }

    /** Metadata, length, then the entries, each with its length before it. */
    @Override
    public CompletableFuture<Void> offload(ReadHandle ledger, UUID uuid, Map<String, String> extra) {
        return CompletableFuture.runAsync(() -> {
            try (DataOutputStream out = new DataOutputStream(Files.newOutputStream(file(uuid)))) {
                byte[] metadata = OffloadUtils.buildLedgerMetadataFormat(ledger.getLedgerMetadata());
                out.writeInt(metadata.length);
                out.write(metadata);
                for (long first = 0; first <= ledger.getLastAddConfirmed(); first += STEP) {
                    long last = Math.min(first + STEP - 1, ledger.getLastAddConfirmed());
                    try (LedgerEntries entries = ledger.read(first, last)) {
                        for (LedgerEntry entry : entries) {
                            byte[] bytes = entry.getEntryBytes();
                            out.writeInt(bytes.length);
                            out.write(bytes);
                        }
                    }
                }
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        });
    }

    @Override
    public CompletableFuture<ReadHandle> readOffloaded(long ledgerId, UUID uuid, Map<String, String> driver) {
        return CompletableFuture.supplyAsync(() -> {
            try (DataInputStream in = new DataInputStream(Files.newInputStream(file(uuid)))) {
                LedgerMetadata metadata = OffloadUtils.parseLedgerMetadata(ledgerId, in.readNBytes(in.readInt()));
                List<byte[]> entries = new ArrayList<>();
                while (in.available() > 0) {
                    entries.add(in.readNBytes(in.readInt()));
                }
                return new Offloaded(ledgerId, metadata, entries);
            } catch (IOException e) {
                throw new IllegalStateException(e);
            }
        });
    }

    @Override
    public CompletableFuture<Void> deleteOffloaded(long ledgerId, UUID uuid, Map<String, String> driver) {
        try {
            Files.deleteIfExists(file(uuid));
            return CompletableFuture.completedFuture(null);
        } catch (IOException e) {
            return CompletableFuture.failedFuture(e);
        }
    }

    private record Offloaded(long getId, LedgerMetadata getLedgerMetadata, List<byte[]> entries) implements ReadHandle {

        @Override
        public CompletableFuture<LedgerEntries> readAsync(long first, long last) {
            List<LedgerEntry> found = new ArrayList<>();
            for (long id = first; id <= last; id++) {
                byte[] bytes = entries.get((int) id);
                found.add(LedgerEntryImpl.create(getId, id, bytes.length, Unpooled.wrappedBuffer(bytes)));
            }
            return CompletableFuture.completedFuture(LedgerEntriesImpl.create(found));
        }

        @Override
        public CompletableFuture<LedgerEntries> readUnconfirmedAsync(long first, long last) {
            return readAsync(first, last);
        }

        @Override
        public CompletableFuture<Long> readLastAddConfirmedAsync() {
            return CompletableFuture.completedFuture(getLastAddConfirmed());
        }

        @Override
        public CompletableFuture<Long> tryReadLastAddConfirmedAsync() {
            return readLastAddConfirmedAsync();
        }

        @Override
        public CompletableFuture<LastConfirmedAndEntry> readLastAddConfirmedAndEntryAsync(long id, long ms, boolean parallel) {
            return CompletableFuture.failedFuture(new UnsupportedOperationException());
        }

        @Override
        public long getLastAddConfirmed() {
            return entries.size() - 1L;
        }

        @Override
        public long getLength() {
            return getLedgerMetadata.getLength();
        }

        @Override
        public boolean isClosed() {
            return true;
        }

        @Override
        public void close() {}

        @Override
        public CompletableFuture<Void> closeAsync() {
            return CompletableFuture.completedFuture(null);
        }
    }
}

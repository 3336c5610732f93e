package dev.podkeeper.pulsar;

import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.mledger.LedgerOffloader;
import org.apache.pulsar.common.policies.data.OffloadPolicies;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;

/** Reads every entry of a ledger that is to be offloaded, and keeps none: for what Pulsar then writes into its metadata. */
final class ForgettingOffloader implements LedgerOffloader {

    @Override
    public String getOffloadDriverName() {
        return "forgetting";
    }

    @Override
    public CompletableFuture<Void> offload(ReadHandle ledger, UUID uuid, Map<String, String> metadata) {
        return ledger.readAsync(0, ledger.getLastAddConfirmed()).thenAccept(LedgerEntries::close);
    }

    @Override
    public CompletableFuture<ReadHandle> readOffloaded(long ledgerId, UUID uuid, Map<String, String> metadata) {
        return CompletableFuture.failedFuture(new UnsupportedOperationException());
    }

    @Override
    public CompletableFuture<Void> deleteOffloaded(long ledgerId, UUID uuid, Map<String, String> metadata) {
        return CompletableFuture.completedFuture(null);
    }

    /** The bookies' copy goes as soon as ledgers are trimmed. */
    @Override
    public OffloadPolicies getOffloadPolicies() {
        OffloadPoliciesImpl policies = new OffloadPoliciesImpl();
        policies.setManagedLedgerOffloadDeletionLagInMillis(0L);
        return policies;
    }

    @Override
    public void close() {}
}

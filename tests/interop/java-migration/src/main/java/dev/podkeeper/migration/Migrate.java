package dev.podkeeper.migration;

import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.apache.pulsar.metadata.coordination.impl.MigrationCoordinator;
import org.apache.pulsar.metadata.impl.DualMetadataStore;

/** A broker's part: a participant, and the coordinator. Migrates when it reads a line, and ends when it reads another. */
public final class Migrate {
    private Migrate() {
    }

    public static void main(String[] words) throws Exception {
        var config = MetadataStoreConfig.builder().sessionTimeoutMillis(10000).build();
        var store = (DualMetadataStore) MetadataStoreExtended.create(words[0], config);
        System.out.println("ready");
        System.in.read();
        new MigrationCoordinator(store.getSourceStore(), words[1]).startMigration();
        System.out.println("migrated");
        System.in.read();
        System.exit(0);
    }
}

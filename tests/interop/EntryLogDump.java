import java.nio.ByteBuffer;
import java.util.TreeMap;
import java.util.zip.CRC32;
import io.netty.buffer.ByteBuf;
import org.apache.bookkeeper.bookie.EntryLogMetadata;
import org.apache.bookkeeper.bookie.ReadOnlyDefaultEntryLogger;
import org.apache.bookkeeper.bookie.storage.EntryLogScanner;
import org.apache.bookkeeper.conf.ServerConfiguration;

/** Prints what the reference reads from entry logs: arguments are a ledger directory and log ids. */
public class EntryLogDump {
    public static void main(String[] arguments) throws Exception {
        ServerConfiguration configuration = new ServerConfiguration();
        configuration.setLedgerDirNames(new String[] {arguments[0]});
        ReadOnlyDefaultEntryLogger logger = new ReadOnlyDefaultEntryLogger(configuration);
        for (int i = 1; i < arguments.length; i++) {
            dump(logger, Long.parseLong(arguments[i]));
        }
        logger.close();
        System.exit(0);
    }

    private static void dump(ReadOnlyDefaultEntryLogger logger, long id) throws Exception {
        EntryLogMetadata metadata = fromMap(logger, id);
        if (metadata != null) {
            TreeMap<Long, Long> sizes = new TreeMap<>();
            metadata.getLedgersMap().forEach((ledger, size) -> sizes.put(ledger, size));
            sizes.forEach((ledger, size) -> System.out.println("map " + id + " " + ledger + " " + size));
        }
        logger.scanEntryLog(id, new EntryLogScanner() {
            @Override
            public boolean accept(long ledgerId) {
                return ledgerId >= 0;
            }

            @Override
            public void process(long ledgerId, long offset, ByteBuf entry) {
                CRC32 checksum = new CRC32();
                byte[] bytes = new byte[entry.readableBytes()];
                entry.getBytes(entry.readerIndex(), bytes);
                checksum.update(bytes);
                long entryId = ByteBuffer.wrap(bytes).getLong(8);
                System.out.println("entry " + id + " " + offset + " " + ledgerId + " " + entryId + " "
                        + bytes.length + " " + checksum.getValue());
            }
        });
    }

    private static EntryLogMetadata fromMap(ReadOnlyDefaultEntryLogger logger, long id) throws Exception {
        java.lang.reflect.Method method = org.apache.bookkeeper.bookie.DefaultEntryLogger.class
                .getDeclaredMethod("extractEntryLogMetadataFromIndex", long.class);
        method.setAccessible(true);
        try {
            return (EntryLogMetadata) method.invoke(logger, id);
        } catch (java.lang.reflect.InvocationTargetException e) {
            System.out.println("nomap " + id);
            return null;
        }
    }
}

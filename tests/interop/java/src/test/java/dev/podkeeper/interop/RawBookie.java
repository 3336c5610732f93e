package dev.podkeeper.interop;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.nio.NioEventLoopGroup;
import java.util.EnumMap;
import java.util.EnumSet;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.common.util.OrderedExecutor;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.BookieSocketAddress;
import org.apache.bookkeeper.proto.BookieClient;
import org.apache.bookkeeper.proto.BookieClientImpl;
import org.apache.bookkeeper.proto.BookieProtocol;
import org.apache.bookkeeper.proto.LedgerMetadataFormat.DigestType;
import org.apache.bookkeeper.proto.checksum.DigestManager;
import org.apache.bookkeeper.stats.NullStatsLogger;

/** Requests to one bookie, answered with the client's return codes ({@link BKException.Code}). */
final class RawBookie implements AutoCloseable {

    private static final int WAIT_SECONDS = 20;

    private final EventLoopGroup loops = new NioEventLoopGroup(1);
    private final OrderedExecutor workers = OrderedExecutor.newBuilder().numThreads(1).build();
    private final ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor();
    private final Map<Protocol, BookieClient> clients = new EnumMap<>(Protocol.class);

    RawBookie() throws Exception {
        for (Protocol protocol : Protocol.values()) {
            clients.put(protocol, new BookieClientImpl(Setting.configuration(protocol), loops, ByteBufAllocator.DEFAULT,
                    workers, timer, NullStatsLogger.INSTANCE, BookieSocketAddress.LEGACY_BOOKIEID_RESOLVER));
        }
    }

    BookieClient of(Protocol protocol) {
        return clients.get(protocol);
    }

    /** Sends one entry; {@code flags} are those of {@link BookieProtocol}. Returns the client's code. */
    int add(Protocol protocol, BookieId bookie, byte[] password, long ledger, long entry, long lac, byte[] payload,
            int flags) throws Exception {
        byte[] key = DigestManager.generateMasterKey(password);
        DigestManager digest = DigestManager.instantiate(
                ledger, password, DigestType.CRC32C, ByteBufAllocator.DEFAULT, protocol == Protocol.V2);
        CompletableFuture<Integer> done = new CompletableFuture<>();
        of(protocol).addEntry(bookie, ledger, key, entry,
                digest.computeDigestAndPackageForSending(
                        entry, lac, payload.length, Unpooled.wrappedBuffer(payload), key, flags),
                (rc, ledgerId, entryId, from, ctx) -> done.complete(rc), null, flags, false, WriteFlag.NONE);
        return done.get(WAIT_SECONDS, TimeUnit.SECONDS);
    }

    int add(Protocol protocol, BookieId bookie, long ledger, long entry, long lac, byte[] payload) throws Exception {
        return add(protocol, bookie, Setting.PASSWORD, ledger, entry, lac, payload, BookieProtocol.FLAG_NONE);
    }

    /** Asks for one entry. Returns the client's code. */
    int read(Protocol protocol, BookieId bookie, long ledger, long entry, int flags, byte[] password) throws Exception {
        CompletableFuture<Integer> done = new CompletableFuture<>();
        byte[] key = password == null ? null : DigestManager.generateMasterKey(password);
        of(protocol).readEntry(bookie, ledger, entry, (rc, ledgerId, entryId, data, ctx) -> done.complete(rc), null,
                flags, key);
        return done.get(WAIT_SECONDS, TimeUnit.SECONDS);
    }

    int read(Protocol protocol, BookieId bookie, long ledger, long entry) throws Exception {
        return read(protocol, bookie, ledger, entry, BookieProtocol.FLAG_NONE, null);
    }

    /** The payload of a stored entry, its digest verified. Fails with a {@link BKException}. */
    CompletableFuture<byte[]> payload(BookieId bookie, long ledger, long entry) throws Exception {
        DigestManager digest = DigestManager.instantiate(
                ledger, Setting.PASSWORD, DigestType.CRC32C, ByteBufAllocator.DEFAULT, true);
        CompletableFuture<byte[]> done = new CompletableFuture<>();
        of(Protocol.V2).readEntry(bookie, ledger, entry, (rc, ledgerId, entryId, data, ctx) -> {
            try {
                if (rc != BKException.Code.OK) {
                    throw BKException.create(rc);
                }
                ByteBuf payload = digest.verifyDigestAndReturnData(entry, data.slice());
                done.complete(ByteBufUtil.getBytes(payload));
            } catch (BKException e) {
                done.completeExceptionally(e);
            }
        }, null, BookieProtocol.FLAG_NONE, null);
        return done;
    }

    /** Fences the ledger as a recovering client does: a read of the last entry. Returns the client's code. */
    int fence(Protocol protocol, BookieId bookie, long ledger, byte[] password) throws Exception {
        return read(protocol, bookie, ledger, BookieProtocol.LAST_ADD_CONFIRMED, BookieProtocol.FLAG_DO_FENCING, password);
    }

    /** Deferred-sync add, protocol v3. */
    int addDeferred(BookieId bookie, long ledger, long entry, long lac, byte[] payload) throws Exception {
        byte[] key = DigestManager.generateMasterKey(Setting.PASSWORD);
        DigestManager digest = DigestManager.instantiate(
                ledger, Setting.PASSWORD, DigestType.CRC32C, ByteBufAllocator.DEFAULT, false);
        ByteBuf data = Unpooled.wrappedBuffer(payload);
        CompletableFuture<Integer> done = new CompletableFuture<>();
        of(Protocol.V3).addEntry(bookie, ledger, key, entry,
                digest.computeDigestAndPackageForSending(entry, lac, payload.length, data, key, BookieProtocol.FLAG_NONE),
                (rc, ledgerId, entryId, from, ctx) -> done.complete(rc), null, BookieProtocol.FLAG_NONE, false,
                EnumSet.of(WriteFlag.DEFERRED_SYNC));
        return done.get(WAIT_SECONDS, TimeUnit.SECONDS);
    }

    /** Everything of the ledger before this request is synced when it is answered. Returns the client's code. */
    int force(BookieId bookie, long ledger) throws Exception {
        CompletableFuture<Integer> done = new CompletableFuture<>();
        of(Protocol.V3).forceLedger(bookie, ledger, (rc, ledgerId, from, ctx) -> done.complete(rc), null);
        return done.get(WAIT_SECONDS, TimeUnit.SECONDS);
    }

    @Override
    public void close() {
        clients.values().forEach(BookieClient::close);
        workers.shutdown();
        timer.shutdown();
        loops.shutdownGracefully(0, 1, TimeUnit.SECONDS);
    }
}

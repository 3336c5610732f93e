package dev.podkeeper.bench;

import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.CompositeByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.handler.codec.LengthFieldBasedFrameDecoder;
import java.io.Reader;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;

/**
 * The smallest thing that a version 2 client takes for a bookie: adds are answered at once and kept in memory, the newest
 * {@link #MOST_BYTES} of them, reads and batch reads are answered from there. No disk, no checks, no version 3. What a load
 * reaches against it is what client and machine let it reach.
 *
 * <p>One event loop serves all, so that entries need no lock.
 */
final class StubBookie {

    private static final long MOST_BYTES = 512L << 20;
    private static final int SESSION_MILLIS = 30_000;
    private static final int ADD = 1;
    private static final int READ = 2;
    private static final int AUTH = 3;
    private static final int BATCH_READ = 7;
    private static final int NO_ENTRY = 2;
    private static final int MASTER_KEY_BYTES = 20;
    private static final int LONGEST_FRAME = 5 << 20;

    private final Map<Long, Kept> ledgers = new LinkedHashMap<>();
    private long bytes;

    /** The entries of one ledger from {@code first} on. */
    private record Kept(long first, List<byte[]> entries) {}

    private StubBookie() {}

    /** {@code args}: the configuration file of a bookie. */
    public static void main(String[] args) throws Exception {
        Properties configuration = new Properties();
        try (Reader file = Files.newBufferedReader(Path.of(args[0]))) {
            configuration.load(file);
        }
        int port = Integer.parseInt(configuration.getProperty("bookiePort"));
        StubBookie bookie = new StubBookie();
        new ServerBootstrap()
                .group(new NioEventLoopGroup(1))
                .channel(NioServerSocketChannel.class)
                .childOption(ChannelOption.TCP_NODELAY, true)
                .childHandler(new ChannelInitializer<SocketChannel>() {
                    @Override
                    protected void initChannel(SocketChannel channel) {
                        channel.pipeline()
                                .addLast(new LengthFieldBasedFrameDecoder(LONGEST_FRAME, 0, 4, 0, 4))
                                .addLast(bookie.new Requests());
                    }
                })
                .bind("127.0.0.1", port)
                .sync();
        register(configuration.getProperty("metadataServiceUri"), "127.0.0.1:" + port);
        new CountDownLatch(1).await();
    }

    private static void register(String metadataUri, String bookieId) throws Exception {
        URI uri = URI.create(metadataUri);
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper session = new ZooKeeper(uri.getAuthority(), SESSION_MILLIS, (WatchedEvent event) -> {
            if (event.getState() == KeeperState.SyncConnected) {
                connected.countDown();
            }
        });
        if (!connected.await(SESSION_MILLIS, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException("no ZooKeeper at " + uri.getAuthority());
        }
        session.create(uri.getPath() + "/available/" + bookieId, new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE,
                CreateMode.EPHEMERAL);
    }

    private void keep(long ledger, long entryId, byte[] entry) {
        ledgers.computeIfAbsent(ledger, id -> new Kept(entryId, new ArrayList<>())).entries().add(entry);
        bytes += entry.length;
        for (Iterator<Kept> oldest = ledgers.values().iterator(); bytes > MOST_BYTES && oldest.hasNext();) {
            for (byte[] forgotten : oldest.next().entries()) {
                bytes -= forgotten.length;
            }
            oldest.remove();
        }
    }

    private byte[] find(long ledger, long entryId) {
        Kept kept = ledgers.get(ledger);
        long place = kept == null ? -1 : entryId - kept.first();
        return place < 0 || place >= kept.entries().size() ? null : kept.entries().get((int) place);
    }

    /** Answers what one socket read brought with one write. */
    private final class Requests extends ChannelInboundHandlerAdapter {

        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {
            ByteBuf frame = (ByteBuf) message;
            try {
                context.write(answer(context, frame), context.voidPromise());
            } finally {
                frame.release();
            }
        }

        @Override
        public void channelReadComplete(ChannelHandlerContext context) {
            context.flush();
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            cause.printStackTrace();
            context.close();
        }

        private ByteBuf answer(ChannelHandlerContext context, ByteBuf frame) {
            int word = frame.readInt();
            switch (word >> 16 & 0xff) {
                case ADD: {
                    frame.skipBytes(MASTER_KEY_BYTES);
                    long ledger = frame.getLong(frame.readerIndex());
                    long entryId = frame.getLong(frame.readerIndex() + 8);
                    byte[] entry = new byte[frame.readableBytes()];
                    frame.readBytes(entry);
                    keep(ledger, entryId, entry);
                    return head(context, word, 0, ledger, entryId, 0);
                }
                case READ: {
                    long ledger = frame.readLong();
                    long entryId = frame.readLong();
                    byte[] entry = find(ledger, entryId);
                    if (entry == null) {
                        return head(context, word, NO_ENTRY, ledger, entryId, 0);
                    }
                    ByteBuf head = head(context, word, 0, ledger, entryId, entry.length);
                    return Unpooled.wrappedBuffer(head, Unpooled.wrappedBuffer(entry));
                }
                case BATCH_READ:
                    return batch(context, word, frame);
                case AUTH: // what a client without authentication says, and hears
                    return context.alloc().buffer(8 + frame.readableBytes())
                            .writeInt(4 + frame.readableBytes()).writeInt(word).writeBytes(frame);
                default:
                    throw new IllegalArgumentException("the stub knows no request with header " + word);
            }
        }

        private ByteBuf batch(ChannelHandlerContext context, int word, ByteBuf frame) {
            long ledger = frame.readLong();
            long first = frame.readLong();
            long request = frame.readLong();
            int most = frame.readInt();
            List<byte[]> found = new ArrayList<>();
            int size = 0;
            for (byte[] entry; found.size() < most && (entry = find(ledger, first + found.size())) != null;) {
                found.add(entry);
                size += 4 + entry.length;
            }
            ByteBuf head = head(context, word, found.isEmpty() ? NO_ENTRY : 0, ledger, first, 8 + size);
            head.writeLong(request);
            CompositeByteBuf answer = context.alloc().compositeBuffer(1 + 2 * found.size());
            answer.addComponent(true, head);
            for (byte[] entry : found) {
                answer.addComponent(true, context.alloc().buffer(4).writeInt(entry.length));
                answer.addComponent(true, Unpooled.wrappedBuffer(entry));
            }
            return answer;
        }

        private ByteBuf head(ChannelHandlerContext context, int word, int code, long ledger, long entryId, int more) {
            return context.alloc().buffer(36)
                    .writeInt(24 + more)
                    .writeInt(word & 0xffff0000)
                    .writeInt(code)
                    .writeLong(ledger)
                    .writeLong(entryId);
        }
    }
}

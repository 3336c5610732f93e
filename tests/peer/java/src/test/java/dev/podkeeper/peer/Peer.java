package dev.podkeeper.peer;

import io.netty.channel.EventLoopGroup;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.Field;
import java.lang.reflect.Proxy;
import java.net.BindException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.Iterator;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.WeakHashMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.auth.BookieAuthProvider;
import org.apache.bookkeeper.bookie.BookieException;
import org.apache.bookkeeper.bookie.LedgerStorage;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.proto.BookieServer;
import org.apache.bookkeeper.tls.SecurityException;

/**
 * A bookie of ours as a child process, behind the Java objects of the bookie that a test believes to have.
 *
 * <p>What can be asked of a process is: its life, its mode, its space, its collection. Anything else is the inside of a Java
 * bookie and ends the test with an UnsupportedOperationException that names it. Any thread.
 */
public final class Peer {

    private static final String TESTER = "org.apache.bookkeeper.test.BookKeeperClusterTestCase$ServerTester";
    private static final Set<String> PROVIDERS = Set.of(
        "org.apache.bookkeeper.tls.BookieAuthZFactory", "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory");
    private static final String CLIENT_LOGIN = "clientAuthProviderFactoryClass";
    private static final String SASL = "org.apache.bookkeeper.sasl.";
    private static final StackWalker WALKER = StackWalker.getInstance();
    private static final HttpClient HTTP = HttpClient.newHttpClient();
    private static final Map<Object, Peer> BEHIND = Collections.synchronizedMap(new WeakHashMap<>());

    private final ServerConfiguration configuration;
    private final BookieAuthProvider.Factory logins;
    private final CountDownLatch ended = new CountDownLatch(1);
    private String pid;
    private String admin;
    private AuthBridge bridge;
    private boolean stopped;

    private Peer(ServerConfiguration configuration, BookieAuthProvider.Factory logins) {
        this.configuration = configuration;
        this.logins = logins;
    }

    // --- while the test base makes the objects of a bookie

    /** True below the constructor that the base calls for a bookie of its own making. */
    public static boolean isBeingMade() {
        return WALKER.walk(frames -> frames.anyMatch(frame -> frame.getClassName().equals(TESTER)
            && frame.getMethodName().equals("<init>")
            && frame.getDescriptor().endsWith("ServerConfiguration;)V")));
    }

    public static boolean hasProvider(ServerConfiguration configuration) {
        String name = configuration.getBookieAuthProviderFactoryClass();
        return name == null || name.isEmpty() || PROVIDERS.contains(name);
    }

    public static LedgerStorage storage() {
        return (LedgerStorage) Proxy.newProxyInstance(
            Peer.class.getClassLoader(), new Class<?>[] {LedgerStorage.class}, (proxy, method, arguments) -> {
                switch (method.getName()) {
                    case "hashCode":
                        return System.identityHashCode(proxy);
                    case "equals":
                        return proxy == arguments[0];
                    case "toString":
                        return "the storage of a bookie of its own";
                    case "getUnderlyingLedgerStorage":
                        return proxy;
                    default:
                        Peer peer = BEHIND.get(proxy);
                        return peer == null ? null : peer.storageCall(method.getName());
                }
            });
    }

    public static void made(Object object) {
        if (isBeingMade()) {
            BookieServer server = (BookieServer) object;
            Objects objects = new Objects(server);
            Peer peer = new Peer(objects.configuration(), objects.logins());
            objects.close();
            BEHIND.put(server, peer);
            BEHIND.put(server.getBookie(), peer);
            BEHIND.put(server.getBookie().getStateManager(), peer);
            BEHIND.put(server.getBookie().getLedgerStorage(), peer);
        }
    }

    public static Peer behind(Object object) {
        return BEHIND.get(object);
    }

    // --- what is asked of it

    /** The answer of a method of BookieServer, BookieImpl or BookieStateManager. */
    public Object call(String method, Object[] arguments) throws Exception {
        switch (method) {
            case "start":
                start();
                return null;
            case "shutdown":
                stop();
                return 0;
            case "forceToShuttingDown":
                stop();
                return null;
            case "suspendProcessing":
                Runner.ask("pause", pid);
                return null;
            case "resumeProcessing":
                Runner.ask("resume", pid);
                return null;
            case "isRunning":
            case "isBookieRunning":
            case "isRegistered":
            case "isAlive":
                return isRunning();
            case "isShuttingDown":
                return stopped;
            case "join":
                ended.await();
                return null;
            case "getExitCode":
                return isRunning() || stopped ? 0 : Integer.parseInt(Runner.ask("code", pid)[0]);
            case "isReadOnly":
                return admin("GET", "state/readonly", "").contains("true");
            case "isAvailableForHighPriorityWrites":
                return isRunning();
            case "transitionToReadOnlyMode":
                return readOnly(true);
            case "transitionToWritableMode":
                return readOnly(false);
            case "doTransitionToReadOnlyMode":
                readOnly(true).get();
                return null;
            case "doTransitionToWritableMode":
                readOnly(false).get();
                return null;
            default:
                throw inside(method);
        }
    }

    /** A whole pass of its collection. */
    public void collect() throws IOException, InterruptedException {
        admin("PUT", "gc", "");
        while (admin("GET", "gc", "").contains("true")) {
            Thread.sleep(20);
        }
    }

    /** What a stop would store. */
    public void flush() throws IOException, InterruptedException {
        admin("PUT", "drain_clients", "");
        admin("PUT", "state/readonly", "{\"readOnly\": false}");
    }

    private Object storageCall(String method) throws Exception {
        switch (method) {
            case "shutdown":
            case "start":
                return null;
            case "forceGC":
                collect();
                return null;
            case "flush":
                flush();
                return null;
            default:
                throw inside("LedgerStorage." + method);
        }
    }

    private static UnsupportedOperationException inside(String what) {
        return new UnsupportedOperationException("the inside of a Java bookie is asked for: " + what);
    }

    private synchronized void start() throws Exception {
        Map<String, String> settings = settings();
        Path file = Files.createTempFile(Runner.folder(), "bookie", ".conf");
        StringBuilder lines = new StringBuilder();
        settings.forEach((name, value) -> lines.append(name).append('=').append(value).append('\n'));
        Files.writeString(file, lines);
        String[] answer = Runner.ask("start", file.toString());
        if (!answer[0].equals("serves")) {
            ended.countDown();
            throw refusal(answer[1]);
        }
        pid = answer[1];
    }

    private synchronized void stop() throws Exception {
        if (pid != null && !stopped) {
            stopped = true;
            Runner.ask("stop", pid);
            ended.countDown();
        }
        if (bridge != null) {
            bridge.close();
            bridge = null;
        }
    }

    private boolean isRunning() {
        return pid != null && !stopped && Runner.ask("code", pid)[0].equals("none");
    }

    /** What the test has set, and what makes the process one of many on this machine. */
    private Map<String, String> settings() throws IOException {
        Map<String, String> settings = new TreeMap<>();
        ServerConfiguration usual = new ServerConfiguration();
        for (Iterator<String> names = configuration.getKeys(); names.hasNext();) {
            String name = names.next();
            String value = text(configuration, name);
            if (!value.equals(text(usual, name))) {
                settings.put(name, value);
            }
        }
        // A test's own class of this kind is for the auto-recovery in this JVM.
        settings.computeIfPresent(CLIENT_LOGIN, (name, value) -> value.startsWith(SASL) ? value : null);
        if (!hasProvider(configuration)) {
            bridge = new AuthBridge(logins);
            settings.put("bookieAuthProviderFactoryClass", "EntryPoint");
            settings.put(CLIENT_LOGIN, "EntryPoint");
            settings.put("authProviderEntryPoint", "peer");
            settings.put("authProviderConfigFile", bridge.file().toString());
        }
        String jaas = System.getProperty("java.security.auth.login.config");
        if (jaas != null && settings.getOrDefault("bookieAuthProviderFactoryClass", "").startsWith(SASL)) {
            settings.put("saslJaasConfigFile", jaas);
            settings.putIfAbsent(CLIENT_LOGIN, SASL + "SASLClientProviderFactory");
        }
        String port = Runner.ask("port")[0];
        admin = "http://127.0.0.1:" + port + "/api/v1/bookie/";
        settings.put("httpServerEnabled", "true");
        settings.put("httpServerHost", "127.0.0.1");
        settings.put("httpServerPort", port);
        return settings;
    }

    private static String text(ServerConfiguration configuration, String name) {
        String[] values = configuration.getStringArray(name);
        return String.join(",", values);
    }

    private CompletableFuture<Void> readOnly(boolean wanted) {
        try {
            admin("PUT", "state/readonly", "{\"readOnly\": " + wanted + "}");
            return CompletableFuture.completedFuture(null);
        } catch (IOException | InterruptedException error) {
            return CompletableFuture.failedFuture(error);
        }
    }

    private String admin(String verb, String path, String body) throws IOException, InterruptedException {
        HttpRequest request = HttpRequest.newBuilder(URI.create(admin + path))
            .header("Content-Type", "application/json")
            .method(verb, HttpRequest.BodyPublishers.ofString(body))
            .build();
        HttpResponse<String> answer = HTTP.send(request, HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() >= 400) {
            throw new IOException(verb + " " + path + ": " + answer.statusCode() + " " + answer.body());
        }
        return answer.body();
    }

    /** The exception with which a Java bookie would have refused to start for such a reason. */
    private static Exception refusal(String said) {
        String words = said.toLowerCase();
        if (words.contains("tls")) {
            return new SecurityException(said);
        }
        if (words.contains("cookie")) {
            return new BookieException.InvalidCookieException(said);
        }
        if (words.contains("already in use")) {
            return new BindException(said);
        }
        return new IOException(said);
    }

    /** The objects of a Java bookie that are of no use any more. */
    private record Objects(BookieServer server) {
        ServerConfiguration configuration() {
            return (ServerConfiguration) field(server, "conf");
        }

        BookieAuthProvider.Factory logins() {
            return (BookieAuthProvider.Factory) field(field(server, "nettyServer"), "authProviderFactory");
        }

        /** Ends their threads. */
        void close() {
            server.getBookieRequestProcessor().close();
            for (String group : new String[] {"eventLoopGroup", "acceptorGroup", "jvmEventLoopGroup"}) {
                if (field(field(server, "nettyServer"), group) instanceof EventLoopGroup threads) {
                    threads.shutdownGracefully(0, 0, TimeUnit.SECONDS);
                }
            }
        }

        private static Object field(Object object, String name) {
            try {
                Field field = object.getClass().getDeclaredField(name);
                field.setAccessible(true);
                return field.get(object);
            } catch (ReflectiveOperationException error) {
                throw new UncheckedIOException(new IOException("this release has no " + name, error));
            }
        }
    }
}

package dev.podkeeper.peer;

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.List;
import org.apache.bookkeeper.auth.AuthToken;
import org.apache.bookkeeper.auth.BookKeeperPrincipal;
import org.apache.bookkeeper.auth.BookieAuthProvider;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.proto.BookieConnectionPeer;

/**
 * Lets a bookie of ours ask a test's own provider of logins: one connection for each of the bookie's, one line for each token,
 * which is answered by the provider's token and whether it is done.
 */
final class AuthBridge {

    private final ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
    private final BookieAuthProvider.Factory factory;
    private final Path file;

    AuthBridge(BookieAuthProvider.Factory factory) throws IOException {
        this.factory = factory;
        this.file = Files.createTempFile(Runner.folder(), "logins", ".txt");
        Files.writeString(file, listener.getLocalPort() + "\n" + factory.getPluginName() + "\n");
        start(this::accept);
    }

    Path file() {
        return file;
    }

    void close() throws IOException {
        listener.close();
        factory.close();
    }

    private static void start(Runnable work) {
        Thread thread = new Thread(work, "logins");
        thread.setDaemon(true);
        thread.start();
    }

    private void accept() {
        try {
            while (true) {
                Socket socket = listener.accept();
                start(() -> serve(socket));
            }
        } catch (IOException closed) {
            // the bookie has ended
        }
    }

    private void serve(Socket socket) {
        try (socket) {
            BufferedReader in = new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.US_ASCII));
            OutputStream out = socket.getOutputStream();
            Client client = new Client(in.readLine());
            BookieAuthProvider provider = factory.newProvider(client, (code, nothing) -> client.completed(code));
            try {
                for (String line = in.readLine(); line != null; line = in.readLine()) {
                    String[] words = line.split(" ", -1);
                    if (words[0].equals("tls")) {
                        client.secure(words[1]);
                        provider.onProtocolUpgrade();
                    } else {
                        provider.process(AuthToken.wrap(Base64.getDecoder().decode(words[1])), client::answered);
                        if (!client.hasAnswered()) {
                            continue; // neither does the bookie
                        }
                    }
                    out.write(client.step().getBytes(StandardCharsets.US_ASCII));
                }
            } finally {
                provider.close();
            }
        } catch (IOException | CertificateException gone) {
            // the client has gone, and so has the bookie's question
        }
    }

    /** The client of the bookie, as the provider sees it. */
    private static final class Client implements BookieConnectionPeer {

        private final InetSocketAddress address;
        private final Collection<Object> certificates = new ArrayList<>();
        private boolean secure;
        private BookKeeperPrincipal principal = BookKeeperPrincipal.ANONYMOUS;
        private String token;
        private String state = "more";

        Client(String address) {
            this.address = InetSocketAddress.createUnresolved(address, 0);
        }

        void secure(String certificate) throws CertificateException {
            secure = true;
            if (!certificate.isEmpty()) {
                certificates.add(CertificateFactory.getInstance("X.509").generateCertificate(
                    new ByteArrayInputStream(Base64.getDecoder().decode(certificate))));
            }
        }

        void completed(int code) {
            state = code == BKException.Code.OK ? "complete" : "refused";
        }

        void answered(int code, AuthToken answer) {
            if (code == BKException.Code.OK) {
                token = Base64.getEncoder().encodeToString(answer.getData());
            } else {
                token = "";
                state = "refused";
            }
        }

        boolean hasAnswered() {
            return token != null;
        }

        String step() {
            String line = state + " " + (token == null ? "" : token) + "\n";
            token = null;
            return line;
        }

        @Override
        public SocketAddress getRemoteAddr() {
            return address;
        }

        @Override
        public Collection<Object> getProtocolPrincipals() {
            return List.copyOf(certificates);
        }

        @Override
        public void disconnect() {
            // nothing is answered any more
        }

        @Override
        public BookKeeperPrincipal getAuthorizedId() {
            return principal;
        }

        @Override
        public void setAuthorizedId(BookKeeperPrincipal authorized) {
            principal = authorized;
        }

        @Override
        public boolean isSecure() {
            return secure;
        }
    }
}

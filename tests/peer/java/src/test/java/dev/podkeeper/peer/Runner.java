package dev.podkeeper.peer;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;

/** What starts, stops and pauses bookies for this JVM: one line of words for each request, one for its answer. Any thread. */
final class Runner {

    private Runner() {}

    static Path folder() {
        return Path.of(System.getProperty("peer.folder"));
    }

    static String[] ask(String... words) {
        try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), Integer.getInteger("peer.port"))) {
            socket.getOutputStream().write((String.join("\t", words) + "\n").getBytes(StandardCharsets.UTF_8));
            String answer = new BufferedReader(
                new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8)).readLine();
            if (answer == null) {
                throw new IOException("no answer to " + String.join(" ", words));
            }
            return answer.split("\t");
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}

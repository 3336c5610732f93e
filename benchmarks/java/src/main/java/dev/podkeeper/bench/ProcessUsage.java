package dev.podkeeper.bench;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * CPU time and memory of a process and its children, from /proc (Linux only).
 *
 * @param cpuSeconds user and system time so far
 * @param rssBytes resident memory now
 * @param peakRssBytes sum of each process's largest resident memory so far
 */
record ProcessUsage(double cpuSeconds, long rssBytes, long peakRssBytes) {

    private static final double TICKS_PER_SECOND = 100.0; // USER_HZ, fixed for /proc on every Linux architecture in use

    static ProcessUsage of(long pid) {
        ProcessHandle root = ProcessHandle.of(pid)
                .orElseThrow(() -> new IllegalArgumentException("--bookie-pid " + pid + " is not a running process"));
        List<Long> pids = new ArrayList<>(List.of(pid));
        root.descendants().map(ProcessHandle::pid).forEach(pids::add);
        double cpu = 0;
        long rss = 0;
        long peak = 0;
        for (long each : pids) {
            try {
                cpu += cpuSeconds(each);
                for (String line : Files.readAllLines(Path.of("/proc/" + each + "/status"))) {
                    rss += kilobytes(line, "VmRSS:");
                    peak += kilobytes(line, "VmHWM:");
                }
            } catch (NoSuchFileException gone) {
                if (each == pid) {
                    throw new IllegalStateException("the bookie, process " + pid + ", has ended", gone);
                }
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }
        return new ProcessUsage(cpu, rss, peak);
    }

    private static double cpuSeconds(long pid) throws IOException {
        String stat = Files.readString(Path.of("/proc/" + pid + "/stat"));
        // The second field, the command, may hold spaces; count from behind its closing parenthesis.
        String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
        return (Long.parseLong(fields[11]) + Long.parseLong(fields[12])) / TICKS_PER_SECOND;
    }

    private static long kilobytes(String line, String key) {
        return line.startsWith(key) ? Long.parseLong(line.substring(key.length()).replace("kB", "").trim()) * 1024 : 0;
    }
}

package dev.podkeeper.bench;

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;
import org.HdrHistogram.Histogram;
import org.HdrHistogram.Recorder;

/**
 * Counts answers and their latencies between {@link #begin} and {@link #end}; what comes outside is not counted.
 *
 * <p>{@link #answered} may be called from any thread.
 */
final class Meter {

    private static final long HIGHEST_MICROS = 120_000_000;

    private final Options options;
    private final Recorder recorder = new Recorder(HIGHEST_MICROS, 3);
    private final LongAdder entries = new LongAdder();
    private final LongAdder errors = new LongAdder();
    private volatile boolean measuring;
    private volatile String firstError;
    private final Map<String, Object> notes = new LinkedHashMap<>();

    private long startNanos;
    private double startClientCpu;
    private ProcessUsage startBookie;
    private Map<String, Object> result;

    Meter(Options options) {
        this.options = options;
    }

    void begin() {
        startBookie = bookie();
        startClientCpu = clientCpuSeconds();
        startNanos = System.nanoTime();
        measuring = true;
    }

    /** One request that carried {@code count} entries was answered; {@code since} is when it was due, from nanoTime. */
    void answered(long since, int count) {
        if (measuring) {
            entries.add(count);
            recorder.recordValue(Math.min(HIGHEST_MICROS, Math.max(0, (System.nanoTime() - since) / 1000)));
        }
    }

    /** A request failed. Failures count from the first one on, measured or not. */
    void failed(String what) {
        errors.increment();
        if (firstError == null) {
            firstError = what;
        }
    }

    /** One more figure of the result. */
    void note(String name, double value) {
        notes.put(name, value);
    }

    boolean hasFailed() {
        return firstError != null;
    }

    void end() {
        measuring = false;
        double seconds = (System.nanoTime() - startNanos) / 1e9;
        double clientCpu = clientCpuSeconds() - startClientCpu;
        ProcessUsage usage = bookie();
        long count = entries.sum();
        Histogram latencies = recorder.getIntervalHistogram();
        result = new LinkedHashMap<>();
        result.put("label", options.label);
        result.put("command", options.command.get(0));
        result.put("protocol", options.protocol);
        result.put("entry_bytes", options.size);
        result.put("ledgers", options.ledgers);
        result.put("window", options.window);
        result.put("rate", options.rate);
        result.put("seconds", seconds);
        result.put("entries", count);
        result.put("entries_per_second", count / seconds);
        result.put("p50_ms", latencies.getValueAtPercentile(50) / 1e3);
        result.put("p99_ms", latencies.getValueAtPercentile(99) / 1e3);
        result.put("p999_ms", latencies.getValueAtPercentile(99.9) / 1e3);
        result.put("max_ms", latencies.getMaxValue() / 1e3);
        result.put("client_cpu_us_per_entry", count == 0 ? null : clientCpu * 1e6 / count);
        if (usage != null) {
            double cpu = usage.cpuSeconds() - startBookie.cpuSeconds();
            result.put("bookie_cpu_us_per_entry", count == 0 ? null : cpu * 1e6 / count);
            result.put("bookie_cpu_cores", cpu / seconds);
            result.put("bookie_rss_mb", usage.rssBytes() / 1e6);
            result.put("bookie_peak_rss_mb", usage.peakRssBytes() / 1e6);
        }
    }

    /** What was measured, by name; only after {@link #end}. */
    Map<String, Object> result() {
        result.putAll(notes);
        result.put("errors", errors.sum());
        result.put("first_error", firstError);
        return result;
    }

    private ProcessUsage bookie() {
        return options.bookiePid == 0 ? null : ProcessUsage.of(options.bookiePid);
    }

    private static double clientCpuSeconds() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
    }
}

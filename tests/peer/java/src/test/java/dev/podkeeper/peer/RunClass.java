package dev.podkeeper.peer;

import static org.junit.platform.engine.discovery.DiscoverySelectors.selectClass;

import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import net.bytebuddy.agent.ByteBuddyAgent;
import org.junit.platform.engine.FilterResult;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.launcher.LauncherDiscoveryRequest;
import org.junit.platform.launcher.PostDiscoveryFilter;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;
import org.opentest4j.MultipleFailuresError;

/**
 * Runs one class of tests: a line for each test that has ended, with what went wrong.
 *
 * <p>Arguments: kind of bookie (ours, java), the class, then methods, and tests with their parameters, that are left out.
 */
public final class RunClass {

    private RunClass() {}

    public static void main(String[] arguments) {
        if (arguments[0].equals("ours")) {
            Seams.install(ByteBuddyAgent.install());
        }
        Set<String> left = new HashSet<>(Arrays.asList(arguments).subList(2, arguments.length));
        PostDiscoveryFilter filter = test -> FilterResult.includedIf(
            !left.contains(test.getDisplayName()) && !left.contains(method(test.getDisplayName())));
        LauncherDiscoveryRequest request =
            LauncherDiscoveryRequestBuilder.request().selectors(selectClass(arguments[1])).filters(filter).build();
        PrintStream out = System.out;
        System.setOut(System.err);
        LauncherFactory.create().execute(request, new Lines(out));
        out.flush();
        Runtime.getRuntime().halt(0); // whatever threads a test has left
    }

    /** The name of a test without its parameters. */
    private static String method(String test) {
        return test.split("[\\[(]", 2)[0];
    }

    /** Names with their parameters; a container that fails, such as a class that cannot be made, is told as well. */
    private record Lines(PrintStream out) implements TestExecutionListener {

        @Override
        public void executionSkipped(TestIdentifier test, String reason) {
            tell("skipped", test, reason);
        }

        @Override
        public void executionFinished(TestIdentifier test, TestExecutionResult result) {
            String state = switch (result.getStatus()) {
                case SUCCESSFUL -> "passed";
                case ABORTED -> "skipped"; // it wants a machine of another kind
                case FAILED -> "failed";
            };
            if (test.isTest() || !state.equals("passed")) {
                StringWriter why = new StringWriter();
                result.getThrowable().ifPresent(error -> causes(error).forEach(
                    each -> each.printStackTrace(new PrintWriter(why))));
                tell(state, test, why.toString());
            }
        }

        /** A test and its end may both fail. */
        private static List<Throwable> causes(Throwable error) {
            return error instanceof MultipleFailuresError several ? several.getFailures() : List.of(error);
        }

        private void tell(String state, TestIdentifier test, String why) {
            String shown = why.strip().replace("\r", "").replace("\t", " ").replace("\n", "\u2028");
            out.println(String.join("\t", "peer", state, test.getDisplayName(), shown));
            out.flush();
        }
    }
}

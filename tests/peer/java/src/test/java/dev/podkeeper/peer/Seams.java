package dev.podkeeper.peer;

import static net.bytebuddy.matcher.ElementMatchers.isConstructor;
import static net.bytebuddy.matcher.ElementMatchers.isPublic;
import static net.bytebuddy.matcher.ElementMatchers.isStatic;
import static net.bytebuddy.matcher.ElementMatchers.named;
import static net.bytebuddy.matcher.ElementMatchers.namedOneOf;
import static net.bytebuddy.matcher.ElementMatchers.not;
import static net.bytebuddy.matcher.ElementMatchers.takesArguments;

import java.lang.instrument.Instrumentation;
import net.bytebuddy.agent.builder.AgentBuilder;
import net.bytebuddy.asm.Advice;
import net.bytebuddy.description.method.MethodDescription;
import net.bytebuddy.implementation.bytecode.assign.Assigner;
import net.bytebuddy.matcher.ElementMatcher;
import org.apache.bookkeeper.bookie.LedgerStorage;
import org.apache.bookkeeper.conf.ServerConfiguration;

/**
 * The places where Apache's test base makes a bookie in its own JVM, and where tests drive it.
 *
 * <p>The base makes all the objects of a Java bookie, then starts its server. Where it does so, they are made without files,
 * port and certificates, and the server's life is that of a process of ours. A bookie that a test makes itself and hands to the
 * base is the test's own fault injection: it stays in this JVM.
 */
final class Seams {

    private static final String PACKAGE = "org.apache.bookkeeper.";

    private Seams() {}

    static void install(Instrumentation instrumentation) {
        AgentBuilder agent = new AgentBuilder.Default().with(
            new AgentBuilder.Listener.WithErrorsOnly(AgentBuilder.Listener.StreamWriting.toSystemError()));
        agent = seam(agent, "test.BookKeeperClusterTestCase",
            isConstructor().and(takesArguments(int.class, int.class, int.class)), Patience.class);
        agent = seam(agent, "bookie.BookieResources", named("createLedgerStorage"), WithoutStorage.class);
        agent = seam(agent, "bookie.LegacyCookieValidation", named("checkCookies"), Skipped.class);
        agent = seam(agent, "proto.BookieNettyServer", named("listenOn"), Skipped.class);
        agent = seam(agent, "tls.SecurityProviderFactoryFactory", named("getSecurityProviderFactory"), Skipped.class);
        agent = seam(agent, "auth.AuthProviderFactoryFactory", named("newBookieAuthProviderFactory"), WithoutLogins.class);
        agent = agent.type(named(PACKAGE + "proto.BookieServer"))
            .transform((builder, type, loader, module, domain) -> builder
                .visit(Advice.to(ServerMade.class).on(isConstructor()))
                .visit(Advice.to(OfAnotherProcess.class).on(namedOneOf(
                    "start", "shutdown", "suspendProcessing", "resumeProcessing", "isRunning", "isBookieRunning", "join",
                    "getExitCode"))));
        agent = seam(agent, "bookie.BookieStateManager", namedOneOf(
            "transitionToReadOnlyMode", "transitionToWritableMode", "doTransitionToReadOnlyMode", "doTransitionToWritableMode",
            "isReadOnly", "isRunning", "isShuttingDown", "forceToReadOnly", "forceToUnregistered", "forceToShuttingDown",
            "registerBookie", "isRegistered", "isAvailableForHighPriorityWrites", "setHighPriorityWritesAvailability"),
            OfAnotherProcess.class);
        agent = seam(agent, "bookie.BookieImpl", isPublic().and(not(isConstructor())).and(not(namedOneOf(
            "getLedgerStorage", "getStateManager", "getLedgerDirsManager", "getJournals", "getAllocator"))).and(not(isStatic())),
            OfAnotherProcess.class);
        agent = seam(agent, "client.TestFencing", named("triggerGC"), Collected.class);
        agent = seam(agent, "bookie.BookieAccessor", named("forceFlush"), Flushed.class);
        agent.installOn(instrumentation);
    }

    private static AgentBuilder seam(
            AgentBuilder agent, String type, ElementMatcher<? super MethodDescription> methods, Class<?> advice) {
        return agent.type(named(PACKAGE + type))
            .transform((builder, description, loader, module, domain) -> builder.visit(Advice.to(advice).on(methods)));
    }

    /** Processes take longer to start than objects do: a test has thrice the time that it gives itself. */
    static final class Patience {
        @Advice.OnMethodEnter
        static void enter(@Advice.Argument(value = 2, readOnly = false) int seconds) {
            seconds *= 3;
        }
    }

    /** No files of a Java bookie come to be in the directories of ours. */
    static final class WithoutStorage {
        @Advice.OnMethodEnter(skipOn = Advice.OnNonDefaultValue.class)
        static boolean enter() {
            return Peer.isBeingMade();
        }

        @Advice.OnMethodExit
        static void exit(@Advice.Enter boolean ours, @Advice.Return(readOnly = false) LedgerStorage storage) {
            if (ours) {
                storage = Peer.storage();
            }
        }
    }

    /** Our bookie checks and stamps its cookies, takes its port, and reads its certificates itself. */
    static final class Skipped {
        @Advice.OnMethodEnter(skipOn = Advice.OnNonDefaultValue.class)
        static boolean enter() {
            return Peer.isBeingMade();
        }
    }

    /** Providers that our bookie has itself; those of a test are asked by it. */
    static final class WithoutLogins {
        @Advice.OnMethodEnter(skipOn = Advice.OnNonDefaultValue.class)
        static boolean enter(@Advice.Argument(0) ServerConfiguration configuration) {
            return Peer.isBeingMade() && Peer.hasProvider(configuration);
        }
    }

    /** No type of an advice is one that it is put into: it would be loaded while it is. */
    static final class ServerMade {
        @Advice.OnMethodExit
        static void exit(@Advice.This Object server) {
            Peer.made(server);
        }
    }

    /** A pass of a collector that the test knows by its class. */
    static final class Collected {
        @Advice.OnMethodEnter
        static void enter(@Advice.Argument(0) Object bookie) throws Exception {
            Peer peer = Peer.behind(bookie);
            if (peer != null) {
                peer.collect();
            }
        }
    }

    /** What is stored, and not only journaled. */
    static final class Flushed {
        @Advice.OnMethodEnter(skipOn = Advice.OnNonDefaultValue.class)
        static boolean enter(@Advice.Argument(0) Object bookie) throws Exception {
            Peer peer = Peer.behind(bookie);
            if (peer != null) {
                peer.flush();
            }
            return peer != null;
        }
    }

    /** What is asked of an object that stands for a process of ours. */
    static final class OfAnotherProcess {
        @Advice.OnMethodEnter(skipOn = Advice.OnNonDefaultValue.class)
        static Peer enter(@Advice.This Object object) {
            return Peer.behind(object);
        }

        @Advice.OnMethodExit
        static void exit(
                @Advice.Enter Peer peer,
                @Advice.Origin("#m") String method,
                @Advice.AllArguments Object[] arguments,
                @Advice.Return(readOnly = false, typing = Assigner.Typing.DYNAMIC) Object answer) throws Exception {
            if (peer != null) {
                answer = peer.call(method, arguments);
            }
        }
    }
}

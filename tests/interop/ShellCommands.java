import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.Map;
import java.util.TreeMap;
import org.apache.bookkeeper.bookie.BookieShell;
import org.apache.commons.cli.Option;
import org.apache.commons.cli.Options;

/** The commands of Apache's shell, one a line, each with its options: `short|long`, and `=` behind those with a value. */
public class ShellCommands {
    public static void main(String[] args) throws Exception {
        Field field = BookieShell.class.getDeclaredField("commands");
        field.setAccessible(true);
        Map<?, ?> commands = (Map<?, ?>) field.get(new BookieShell());
        for (Map.Entry<?, ?> command : new TreeMap<>(commands).entrySet()) {
            StringBuilder line = new StringBuilder("command " + command.getKey());
            Options options = options(command.getValue());
            if (options != null) {
                for (Object each : options.getOptions()) {
                    Option option = (Option) each;
                    line.append(' ').append(option.getOpt());
                    line.append(option.getLongOpt() == null ? "" : "|" + option.getLongOpt());
                    line.append(option.hasArg() ? "=" : "");
                }
            }
            System.out.println(line);
        }
    }

    /** Null: this kind of command has none of the library that the others use. */
    private static Options options(Object command) throws Exception {
        for (Class<?> type = command.getClass(); type != null; type = type.getSuperclass()) {
            for (Method method : type.getDeclaredMethods()) {
                if (method.getName().equals("getOptions") && method.getParameterCount() == 0) {
                    method.setAccessible(true);
                    return (Options) method.invoke(command);
                }
            }
        }
        return null;
    }
}

import java.io.BufferedReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.Properties;

/** Loads each file named on the command line; prints its pairs as hexadecimal UTF-8, or what was thrown. */
public class PropertiesDump {
    public static void main(String[] files) throws Exception {
        HexFormat hex = HexFormat.of();
        for (String file : files) {
            Properties properties = new Properties();
            try (BufferedReader reader = Files.newBufferedReader(Path.of(file))) {
                properties.load(reader);
                StringBuilder line = new StringBuilder("ok");
                for (String name : properties.stringPropertyNames()) {
                    line.append(' ').append(hex.formatHex(name.getBytes(StandardCharsets.UTF_8)));
                    line.append('=').append(hex.formatHex(properties.getProperty(name).getBytes(StandardCharsets.UTF_8)));
                }
                System.out.println(line);
            } catch (IllegalArgumentException e) {
                System.out.println("refused");
            }
        }
    }
}

package dev.podkeeper.pulsar;

import com.fasterxml.jackson.databind.JsonNode;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import java.io.IOException;
import org.apache.pulsar.common.api.proto.CompressionType;
import org.apache.pulsar.common.api.proto.MessageMetadata;
import org.apache.pulsar.common.api.proto.SingleMessageMetadata;
import org.apache.pulsar.common.compression.CompressionCodecProvider;
import org.apache.pulsar.common.protocol.Commands;
import org.apache.pulsar.common.protocol.Commands.ChecksumType;

/** Entries of a topic, made as Pulsar's producers make them. */
final class Messages {

    static final long PUBLISHED_MILLIS = 1_700_000_000_000L;

    private Messages() {}

    /** A buffer that the callee may release. */
    static ByteBuf buffer(byte[] bytes) {
        return ByteBufAllocator.DEFAULT.buffer(bytes.length).writeBytes(bytes);
    }

    /** Of messages with "key", "value" (base64) and a property "user". */
    static ByteBuf batch(JsonNode messages, String compression) throws IOException {
        ByteBuf batch = ByteBufAllocator.DEFAULT.buffer();
        for (JsonNode each : messages) {
            SingleMessageMetadata single = new SingleMessageMetadata().setPartitionKey(each.get("key").asText());
            single.addProperty().setKey("user").setValue(each.get("user").asText());
            ByteBuf value = buffer(each.get("value").binaryValue());
            Commands.serializeSingleMessageInBatchWithPayload(single, value, batch);
            value.release();
        }
        CompressionType type = CompressionType.valueOf(compression);
        MessageMetadata metadata = new MessageMetadata().setProducerName("interop").setSequenceId(1)
                .setPublishTime(PUBLISHED_MILLIS).setNumMessagesInBatch(messages.size())
                .setCompression(type).setUncompressedSize(batch.readableBytes());
        ByteBuf payload = CompressionCodecProvider.getCompressionCodec(type).encode(batch);
        batch.release();
        return Commands.serializeMetadataAndPayload(ChecksumType.Crc32c, metadata, payload);
    }
}

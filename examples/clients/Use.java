// SPDX-License-Identifier: Apache-2.0
// Subscribe and call at a broker of MQTT 5: `java -cp PAHO.jar Use.java tcp://127.0.0.1:1883 phone hpc.vin1 A001`.

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.eclipse.paho.mqttv5.client.IMqttToken;
import org.eclipse.paho.mqttv5.client.MqttAsyncClient;
import org.eclipse.paho.mqttv5.client.MqttCallback;
import org.eclipse.paho.mqttv5.client.MqttDisconnectResponse;
import org.eclipse.paho.mqttv5.client.persist.MemoryPersistence;
import org.eclipse.paho.mqttv5.common.MqttException;
import org.eclipse.paho.mqttv5.common.MqttMessage;
import org.eclipse.paho.mqttv5.common.packet.MqttProperties;
import org.eclipse.paho.mqttv5.common.packet.UserProperty;

public class Use implements MqttCallback {
    static final int TEXT = 7, PROTOBUF = 2, SECONDS = 10;

    /** An address: authority, type of the entity, version and resource in hexadecimal. The instance is 0. */
    record Address(String authority, String type, String version, String resource) {
        String topic() { return String.join("/", authority, type, "0", version, resource); }
        String uri() { return "//" + String.join("/", authority, type, version, resource); }

        byte[] protobuf() {
            var out = new ByteArrayOutputStream();
            field(out, 1, authority.getBytes());
            varint(out, 2, type);
            varint(out, 3, version);
            varint(out, 4, resource);
            return out.toByteArray();
        }
    }

    static void field(ByteArrayOutputStream out, int number, byte[] data) {
        out.write(number << 3 | 2);
        out.write(data.length);  // below 128
        out.writeBytes(data);
    }

    static void varint(ByteArrayOutputStream out, int number, String hexadecimal) {
        int value = Integer.parseInt(hexadecimal, 16);
        out.write(number << 3);
        for (; value > 0x7F; value >>>= 7) out.write(value & 0x7F | 0x80);
        out.write(value);
    }

    static UUID uuid7() {
        var random = new SecureRandom();
        long high = System.currentTimeMillis() << 16 | 0x7000 | random.nextInt(1 << 12);
        return new UUID(high, random.nextLong() >>> 2 | 1L << 63);
    }

    static String property(MqttMessage message, String key) {
        return message.getProperties().getUserProperties().stream().filter(each -> each.getKey().equals(key))
            .map(UserProperty::getValue).findFirst().orElse("");
    }

    final MqttAsyncClient client;
    final Address me;
    final Map<UUID, BlockingQueue<MqttMessage>> calls = new ConcurrentHashMap<>();
    final BlockingQueue<String> events = new ArrayBlockingQueue<>(100), notifications = new ArrayBlockingQueue<>(100);

    Use(String broker, Address me) throws Exception {
        this.me = me;
        client = new MqttAsyncClient(broker, "phone", new MemoryPersistence());
        client.setCallback(this);
        client.connect().waitForCompletion(SECONDS * 1000);
        listen("+/+/+/+/+/" + me.topic());
    }

    void listen(String topic) throws Exception {
        client.subscribe(topic, 1).waitForCompletion(SECONDS * 1000);
    }

    public void messageArrived(String topic, MqttMessage message) {
        switch (property(message, "2")) {
            case "pub.v1" -> events.offer(new String(message.getPayload()));
            case "not.v1" -> {  // uSubscription notifies of the subscription, too
                if (property(message, "3").endsWith("/8002")) notifications.offer(new String(message.getPayload()));
            }
            case "res.v1" -> {
                var id = ByteBuffer.wrap(message.getProperties().getCorrelationData());
                var answer = calls.get(new UUID(id.getLong(), id.getLong()));
                if (answer != null) answer.offer(message);
            }
            default -> { }
        }
    }

    public void disconnected(MqttDisconnectResponse response) { }
    public void mqttErrorOccurred(MqttException error) { error.printStackTrace(); }
    public void deliveryComplete(IMqttToken token) { }
    public void connectComplete(boolean again, String broker) { }
    public void authPacketArrived(int code, MqttProperties properties) { }

    byte[] call(Address method, int format, byte[] payload) throws Exception {
        var id = uuid7();
        var properties = new MqttProperties();
        properties.setUserProperties(new ArrayList<>(List.of(
            new UserProperty("uP", "1"), new UserProperty("1", id.toString()), new UserProperty("2", "req.v1"),
            new UserProperty("3", me.uri()), new UserProperty("4", method.uri()), new UserProperty("5", "CS4"))));
        properties.setMessageExpiryInterval((long) SECONDS);
        properties.setContentType(Integer.toString(format));
        var message = new MqttMessage(payload, 1, false, properties);
        var answer = new ArrayBlockingQueue<MqttMessage>(1);
        calls.put(id, answer);
        client.publish(me.topic() + "/" + method.topic(), message);
        var found = answer.poll(SECONDS, TimeUnit.SECONDS);
        calls.remove(id);
        if (found == null) throw new IllegalStateException(method.uri() + ": no answer");
        var code = property(found, "8");
        if (!code.isEmpty() && !code.equals("0")) throw new IllegalStateException(method.uri() + ": UCode " + code);
        return found.getPayload();
    }

    public static void main(String[] arguments) throws Exception {
        String broker = arguments[0], gateway = arguments[2], type = arguments[3];
        var use = new Use(broker, new Address(arguments[1], "B001", "1", "0"));
        try {
            var topic = new Address(gateway, type, "1", "8001");
            use.listen(topic.topic());
            var request = new ByteArrayOutputStream();
            field(request, 1, topic.protobuf());  // SubscriptionRequest.topic
            use.call(new Address(gateway, "0", "3", "1"), PROTOBUF, request.toByteArray());
            System.out.println("event: " + use.events.poll(SECONDS, TimeUnit.SECONDS));
            var answer = use.call(new Address(gateway, type, "1", "1"), TEXT, "warm".getBytes());
            System.out.println("answer: " + new String(answer));
            System.out.println("notification: " + use.notifications.poll(SECONDS, TimeUnit.SECONDS));
        } finally {
            use.client.disconnect().waitForCompletion(SECONDS * 1000);
            use.client.close();
        }
    }
}

import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.SelectionKey;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;

import org.apache.zookeeper.server.NIOServerCnxn;
import org.apache.zookeeper.server.NIOServerCnxnFactory;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Refuses other users of this machine at a port of ZooKeeper on loopback, before a byte is read.
 *
 * What transport/local_users.py is to the ports of brokers. A client without a login could fill the
 * heap with watches and ids until the server ends. The property regent.local.users has the ids of
 * the users that may connect, separated by commas.
 *
 * This is the thread that serves all clients, and Linux needs a millisecond for its table of a
 * thousand sockets. So one reading serves all who wait, and while strangers connect, readings take
 * a fifth of the time at most: who is in none is refused, and may try again. Then the thread that
 * accepts lets only one more in each millisecond: all who wait come before what clients send.
 *
 * A test compiles this file with Janino, which comes with Spark and needs the two casts, and
 * compares the class. After a change, in this folder, with J for the jars of PySpark: java -cp "J/*"
 * org.codehaus.commons.compiler.samples.CompilerDemo -d . -classpath J/zookeeper-VERSION.jar:
 * J/slf4j-api-VERSION.jar LocalUsersCnxnFactory.java
 */
public final class LocalUsersCnxnFactory extends NIOServerCnxnFactory {
    private static final Logger LOG = LoggerFactory.getLogger(LocalUsersCnxnFactory.class);
    private static final long MS = 1_000_000L;
    private static final long LOG_INTERVAL = 10_000 * MS;
    private static final long QUIET = 1_000 * MS;
    private static final long KEPT = 20 * MS; // an address can be that of another user later
    private static final int PAUSE = 4; // times the duration of the last reading
    private static final String ESTABLISHED = "01";
    private static final byte[] MAPPED = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, -1};

    private final Collection<String> users =
        Arrays.asList(System.getProperty("regent.local.users").split(","));
    private final Map<String, String> owners = new HashMap<>();
    private long readAt = System.nanoTime() - QUIET;
    private long readDuration;
    private volatile long refusedAt = System.nanoTime() - QUIET;
    private long loggedAt = System.nanoTime() - LOG_INTERVAL;
    private int refused;

    @Override
    protected NIOServerCnxn createConnection(
            SocketChannel channel, SelectionKey key, SelectorThread selector) throws IOException {
        admit(
            (InetSocketAddress) channel.getRemoteAddress(),
            (InetSocketAddress) channel.getLocalAddress());
        return super.createConnection(channel, key, selector);
    }

    /** Is asked after each accept, on the thread that accepts. */
    @Override
    protected boolean limitTotalNumberOfCnxns() {
        if (System.nanoTime() - refusedAt < QUIET) {
            LockSupport.parkNanos(MS);
        }
        return super.limitTotalNumberOfCnxns();
    }

    private synchronized void admit(InetSocketAddress theirs, InetSocketAddress ours)
            throws IOException {
        String owner = owner(theirs, ours);
        if (users.contains(owner)) {
            return;
        }
        refused++;
        refusedAt = System.nanoTime();
        String why = owner == null ? "nobody is known to have it" : "it belongs to user " + owner;
        if (refusedAt - loggedAt >= LOG_INTERVAL) {
            loggedAt = refusedAt;
            LOG.warn("Closed a connection from {}: {} ({} so far)", theirs, why, refused);
        }
        throw new IOException(why);
    }

    /** Returns the id of the user whose process has the other end; null: nobody is known. */
    private String owner(InetSocketAddress theirs, InetSocketAddress ours) throws IOException {
        String ends = inTable(theirs) + " " + inTable(ours);
        long now = System.nanoTime();
        String owner = (String) owners.remove(ends);
        if (owner != null && now - readAt < KEPT) {
            return owner;
        }
        if (now - refusedAt < QUIET && now - readAt < PAUSE * readDuration) {
            return null;
        }
        owners.clear();
        String port = String.format(":%04X", ours.getPort());
        read(Paths.get("/proc/net/tcp"), port, words(ByteBuffer.wrap(MAPPED)));
        read(Paths.get("/proc/net/tcp6"), port, "");
        readAt = System.nanoTime();
        readDuration = readAt - now;
        return (String) owners.remove(ends);
    }

    /** Notes who has which connection to a port. Sockets that no process has look like user 0's. */
    private void read(Path table, String port, String prefix) throws IOException {
        if (!Files.exists(table)) {
            return; // this machine has no IPv6
        }
        String text = new String(Files.readAllBytes(table), StandardCharsets.US_ASCII);
        String wanted = port + " " + ESTABLISHED + " ";
        for (int at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + 1)) {
            int start = text.lastIndexOf('\n', at) + 1;
            int end = text.indexOf('\n', at);
            String line = text.substring(start, end < 0 ? text.length() : end);
            String[] words = line.trim().split(" +", 9);
            owners.put(prefix + words[1] + " " + prefix + words[2], words[7]);
        }
    }

    /** Returns an address and its port as Linux writes them, those of IPv4 as IPv6 has them. */
    private static String inTable(InetSocketAddress address) {
        byte[] bytes = address.getAddress().getAddress();
        ByteBuffer ipv6 = ByteBuffer.allocate(16);
        if (bytes.length == 4) {
            ipv6.put(MAPPED);
        }
        ipv6.put(bytes).flip();
        return words(ipv6) + String.format(":%04X", address.getPort());
    }

    /** Returns bytes as Linux writes those of addresses: four at a time, as numbers. */
    private static String words(ByteBuffer bytes) {
        bytes.order(ByteOrder.nativeOrder());
        StringBuilder text = new StringBuilder();
        while (bytes.hasRemaining()) {
            text.append(String.format("%08X", bytes.getInt()));
        }
        return text.toString();
    }
}

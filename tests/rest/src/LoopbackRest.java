// SPDX-License-Identifier: Apache-2.0
import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;

/**
 * Iceberg's own REST catalog server, over a JdbcCatalog; it listens on 127.0.0.1 only (the stock one listens
 * everywhere).
 *
 * <p>Each line of standard input is one order: a JSON object of JdbcCatalog's properties with the catalog's
 * "name" starts a server on a free port and is answered "READY port"; a port stops that server and is answered
 * "CLOSED port". So passwords are not in the process arguments. The end of the input, also when the
 * parent dies, ends the process.
 */
public class LoopbackRest {
  private static final ObjectMapper JSON = new ObjectMapper();

  private record Served(Server server, JdbcCatalog catalog) {}

  public static void main(String[] args) throws Exception {
    Map<Integer, Served> servers = new HashMap<>();
    BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String order = orders.readLine(); order != null; order = orders.readLine()) {
      try {
        if (order.startsWith("{")) {
          Served served = open(JSON.readValue(order, new TypeReference<Map<String, String>>() {}));
          int port = served.server().getURI().getPort();
          servers.put(port, served);
          System.out.println("READY " + port);
        } else {
          Served served = servers.remove(Integer.valueOf(order));
          served.server().stop();
          served.catalog().close();
          System.out.println("CLOSED " + order);
        }
      } catch (Exception e) {
        System.out.println("FAILED " + e.toString().replace('\n', ' '));
      }
    }
    System.exit(0);
  }

  private static Served open(Map<String, String> properties) throws Exception {
    JdbcCatalog catalog = new JdbcCatalog();
    catalog.setConf(new Configuration());
    catalog.initialize(properties.remove("name"), properties);
    ServletContextHandler context = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
    context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    Server server = new Server(new InetSocketAddress("127.0.0.1", 0));
    server.setHandler(context);
    server.start();
    return new Served(server, catalog);
  }
}

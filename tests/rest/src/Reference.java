// SPDX-License-Identifier: Apache-2.0
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.ContentFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.SchemaParser;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.view.BaseView;
import org.apache.iceberg.view.UpdateViewProperties;
import org.apache.iceberg.view.View;
import org.apache.iceberg.view.ViewBuilder;
import org.apache.iceberg.view.ViewMetadata;
import org.apache.iceberg.view.ViewMetadataParser;

/**
 * Iceberg's reference implementation: reads metadata files, and changes the views of a JdbcCatalog.
 *
 * <p>Each line of standard input is one order, a JSON object; the answer is a line with a JSON object, either
 * {"answer": …} or {"error": …}. The end of the input ends the process.
 */
public class Reference {
  private static final ObjectMapper JSON = new ObjectMapper();

  private final FileIO files = new HadoopFileIO(new Configuration());
  private JdbcCatalog catalog;

  public static void main(String[] args) throws Exception {
    Reference reference = new Reference();
    PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String order = orders.readLine(); order != null; order = orders.readLine()) {
      ObjectNode answer = JSON.createObjectNode();
      try {
        answer.set("answer", reference.follow(JSON.readTree(order)));
      } catch (Exception e) {
        answer.put("error", e.toString());
      }
      answers.println(JSON.writeValueAsString(answer));
    }
    System.exit(0);
  }

  private JsonNode follow(JsonNode order) throws Exception {
    switch (order.get("order").asText()) {
      case "read-view":
        ViewMetadata metadata = ViewMetadataParser.read(files.newInputFile(order.get("location").asText()));
        return JSON.readTree(ViewMetadataParser.toJson(metadata));
      case "read-table":
        TableMetadata table = TableMetadataParser.read(files, order.get("location").asText());
        return JSON.readTree(TableMetadataParser.toJson(table));
      case "read-data-files":
        return dataFiles(TableMetadataParser.read(files, order.get("location").asText()));
      case "open":
        open(texts(order.get("properties")));
        return JSON.createObjectNode();
      case "create-view":
        return seen(builder(order).create());
      case "replace-view":
        return seen(builder(order).replace());
      case "set-view-properties":
        UpdateViewProperties update = catalog.loadView(identifier(order)).updateProperties();
        texts(order.get("properties")).forEach(update::set);
        update.commit();
        return seen(catalog.loadView(identifier(order)));
      case "load-view":
        return seen(catalog.loadView(identifier(order)));
      default:
        throw new IllegalArgumentException("no such order");
    }
  }

  private void open(Map<String, String> properties) {
    if (catalog != null) {
      catalog.close();
    }
    catalog = new JdbcCatalog();
    catalog.setConf(new Configuration());
    catalog.initialize(properties.remove("name"), properties);
  }

  private ViewBuilder builder(JsonNode order) {
    TableIdentifier identifier = identifier(order);
    ViewBuilder builder =
        catalog
            .buildView(identifier)
            .withSchema(SchemaParser.fromJson(order.get("schema")))
            .withDefaultNamespace(identifier.namespace())
            .withProperties(texts(order.get("properties")));
    texts(order.get("sql")).forEach(builder::withQuery);
    return builder;
  }

  private static TableIdentifier identifier(JsonNode order) {
    return TableIdentifier.of(Namespace.of(order.get("namespace").asText()), order.get("name").asText());
  }

  private static Map<String, String> texts(JsonNode object) {
    Map<String, String> texts = new HashMap<>();
    for (Iterator<Map.Entry<String, JsonNode>> each = object.fields(); each.hasNext(); ) {
      Map.Entry<String, JsonNode> entry = each.next();
      texts.put(entry.getKey(), entry.getValue().asText());
    }
    return texts;
  }

  private static JsonNode seen(View view) throws Exception {
    ViewMetadata metadata = ((BaseView) view).operations().current();
    ObjectNode seen = JSON.createObjectNode();
    seen.put("metadata-location", metadata.metadataFileLocation());
    seen.set("metadata", JSON.readTree(ViewMetadataParser.toJson(metadata)));
    return seen;
  }

  /** For each retained snapshot: the live files of its manifests and how many rows each has. */
  private JsonNode dataFiles(TableMetadata table) throws Exception {
    ObjectNode bySnapshot = JSON.createObjectNode();
    for (Snapshot snapshot : table.snapshots()) {
      ArrayNode found = bySnapshot.putArray(String.valueOf(snapshot.snapshotId()));
      for (ManifestFile manifest : snapshot.dataManifests(files)) {
        try (CloseableIterable<? extends ContentFile<?>> live =
            ManifestFiles.read(manifest, files, table.specsById())) {
          live.forEach(file -> add(found, file));
        }
      }
      for (ManifestFile manifest : snapshot.deleteManifests(files)) {
        try (CloseableIterable<DeleteFile> live =
            ManifestFiles.readDeleteManifest(manifest, files, table.specsById())) {
          live.forEach(file -> add(found, file));
        }
      }
    }
    return bySnapshot;
  }

  private static void add(ArrayNode found, ContentFile<?> file) {
    found.addArray().add(file.location()).add(file.recordCount());
  }
}

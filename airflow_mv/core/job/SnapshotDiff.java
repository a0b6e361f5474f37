// SPDX-License-Identifier: Apache-2.0

import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;
import java.util.function.LongConsumer;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.ContentFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileContent;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.IncrementalAppendScan;
import org.apache.iceberg.PartitionField;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Schema;
import org.apache.iceberg.SchemaParser;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.StaticTableOperations;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.TableScan;
import org.apache.iceberg.data.BaseDeleteLoader;
import org.apache.iceberg.encryption.EncryptingFileIO;
import org.apache.iceberg.encryption.EncryptionManager;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.types.Comparators;
import org.apache.iceberg.types.Conversions;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.TypeUtil;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.SnapshotUtil;
import org.apache.spark.sql.RowFactory;

/**
 * The scan tasks by which two snapshots of a table differ. A task of one data file with the same delete files on both
 * sides yields the same rows, so nothing has to be read of it. Compiled by the Janino that Spark ships: no lambdas, no
 * diamonds. Over py4j each file would cost a round trip for each of its facts.
 */
public class SnapshotDiff {
  private final Table table;
  private final Long start;
  private final Long end;
  private final List removed = new ArrayList();
  private final List added = new ArrayList();
  private final List before = new ArrayList();
  private final List after = new ArrayList();
  private final List same = new ArrayList();

  public SnapshotDiff(Table table, Long start, Long end) {
    this.table = table;
    this.start = start;
    this.end = end;
  }

  /** Why the columns of the two snapshots cannot be compared, or null. Of partial ones, only common fields are read. */
  public String problem(List columns, List partial) {
    Schema old = SnapshotUtil.schemaFor(table, start.longValue());
    Schema now = SnapshotUtil.schemaFor(table, end.longValue());
    if (old.sameSchema(now)) {
      return null;
    }
    Iterator names = columns.iterator();
    while (names.hasNext()) {
      String name = (String) names.next();
      Types.NestedField from = field(old, name);
      Types.NestedField to = field(now, name);
      if (from == null || to == null || from.fieldId() != to.fieldId()) {
        return "column " + name + " is not the same column in both snapshots";
      }
      Type type = from.type();
      boolean promoted = type.isPrimitiveType() && to.type().isPrimitiveType()
          && TypeUtil.isPromotionAllowed(type, to.type().asPrimitiveType());
      boolean same = partial.contains(name) ? isSame(type, to.type()) : type.equals(to.type());
      if (!promoted && !same) {
        return "column " + name + " was " + type + " and is " + to.type();
      }
    }
    return null;
  }

  /**
   * Whether the nested fields that both types have are the same ones. All rows are read with the columns of the end.
   */
  private static boolean isSame(Type from, Type to) {
    if (!from.isNestedType() || !to.isNestedType() || from.typeId() != to.typeId()) {
      return from.equals(to);
    }
    Iterator fields = from.asNestedType().fields().iterator();
    while (fields.hasNext()) {
      Types.NestedField field = (Types.NestedField) fields.next();
      Types.NestedField now = to.isStructType() ? to.asStructType().field(field.name())
          : to.asNestedType().field(field.fieldId());
      boolean gone = now == null && to.isStructType();
      if (!gone && (now == null || now.fieldId() != field.fieldId() || !isSame(field.type(), now.type()))) {
        return false;
      }
    }
    return true;
  }

  private static Types.NestedField field(Schema schema, String name) {
    Types.NestedField found = schema.asStruct().field(name);
    return found != null ? found : schema.asStruct().caseInsensitiveField(name);
  }

  /** Whether Iceberg's scan of appends finds its way to the start and, as it cannot be pinned, the columns of the end. */
  public boolean appendsCanBeScanned() {
    return SnapshotUtil.isAncestorOf(table, end.longValue(), start.longValue())
        && table.schema().sameSchema(SnapshotUtil.schemaFor(table, end.longValue()));
  }

  /** Files, bytes and rows that the appends after the start added, by their summaries; null where one does not say. */
  public List appended() {
    long[] sums = new long[3];
    String[] keys = new String[] {"added-data-files", "added-files-size", "added-records"};
    Snapshot snapshot = table.snapshot(end.longValue());
    while (snapshot != null && snapshot.snapshotId() != start.longValue()) {
      if ("append".equals(snapshot.operation())) {
        for (int i = 0; i < keys.length; i++) {
          String value = (String) snapshot.summary().get(keys[i]);
          boolean none = value == null && "0".equals(snapshot.summary().get("added-data-files"));
          if (!none && (value == null || !value.matches("[0-9]{1,18}"))) {
            return null;
          }
          sums[i] += none ? 0 : Long.parseLong(value);
        }
      }
      snapshot = snapshot.parentId() == null ? null : table.snapshot(snapshot.parentId().longValue());
    }
    List found = new ArrayList();
    for (int i = 0; i < sums.length; i++) {
      found.add(Long.valueOf(sums[i]));
    }
    return found;
  }

  /**
   * The bounds of columns in all files that the appends after the start added: for each column its least and greatest
   * value and whether it may be NULL; an empty list where a file does not say. As JSON: Python would ask for each value.
   */
  public String appendedBounds(List columns) throws java.io.IOException {
    Schema schema = SnapshotUtil.schemaFor(table, end.longValue());
    Bounds[] all = new Bounds[columns.size()];
    for (int i = 0; i < all.length; i++) {
      all[i] = new Bounds(field(schema, (String) columns.get(i)));
    }
    CloseableIterable planned = ((IncrementalAppendScan) ((IncrementalAppendScan) ((IncrementalAppendScan)
        table.newIncrementalAppendScan().fromSnapshotExclusive(start.longValue())).toSnapshot(end.longValue()))
        .includeColumnStats()).planFiles();
    try {
      Iterator each = planned.iterator();
      while (each.hasNext()) {
        ContentFile file = ((FileScanTask) each.next()).file();
        for (int i = 0; i < all.length; i++) {
          all[i].add(file);
        }
      }
    } finally {
      planned.close();
    }
    List found = new ArrayList();
    for (int i = 0; i < all.length; i++) {
      found.add(all[i].values());
    }
    return new ObjectMapper().writeValueAsString(found);
  }

  /** What the files' statistics say of one column. */
  private static class Bounds {
    /** Types whose values are in the order of Spark's. */
    private static final List TYPES = Arrays.asList(new Object[] {Type.TypeID.INTEGER, Type.TypeID.LONG,
        Type.TypeID.DATE, Type.TypeID.TIMESTAMP, Type.TypeID.DECIMAL, Type.TypeID.STRING});
    private final Integer id;
    private final Type.PrimitiveType type;
    private Object least;
    private Object greatest;
    private boolean nulls;
    private boolean known;

    Bounds(Types.NestedField field) {
      this.known = field != null && TYPES.contains(field.type().typeId());
      this.id = field == null ? null : Integer.valueOf(field.fieldId());
      this.type = known ? field.type().asPrimitiveType() : null;
    }

    void add(ContentFile file) {
      Object values = of(file.valueCounts());
      Object none = of(file.nullValueCounts());
      nulls |= none == null || ((Long) none).longValue() > 0;
      if (!known || (values != null && values.equals(none))) {
        return;
      }
      ByteBuffer low = (ByteBuffer) of(file.lowerBounds());
      ByteBuffer high = (ByteBuffer) of(file.upperBounds());
      known = low != null && high != null;
      if (known) {
        Comparator order = Comparators.forType(type);
        Object here = Conversions.fromByteBuffer(type, low);
        Object there = Conversions.fromByteBuffer(type, high);
        known = !isDoubtful(here) && !isDoubtful(there);
        least = least == null || order.compare(here, least) < 0 ? here : least;
        greatest = greatest == null || order.compare(there, greatest) > 0 ? there : greatest;
      }
    }

    /** Whether a bound stands for what is no UTF-8: decoded as U+FFFD; cut short and raised it is U+FFFE. */
    private static boolean isDoubtful(Object bound) {
      String text = bound instanceof CharSequence ? bound.toString() : "";
      return text.indexOf(0xfffd) >= 0 || text.indexOf(0xfffe) >= 0;
    }

    private Object of(Map statistics) {
      return statistics == null ? null : statistics.get(id);
    }

    List values() {
      List found = new ArrayList();
      if (known && least != null) {
        found.add(least instanceof CharSequence ? least.toString() : least);
        found.add(greatest instanceof CharSequence ? greatest.toString() : greatest);
        found.add(Boolean.valueOf(nulls));
      }
      return found;
    }
  }

  /** Plan both snapshots and keep what differs. */
  public void plan() throws java.io.IOException {
    Map old = tasks(start);
    Map now = tasks(end);
    Set locations = new HashSet(old.keySet());
    locations.addAll(now.keySet());
    Iterator each = locations.iterator();
    while (each.hasNext()) {
      Object location = each.next();
      List left = old.containsKey(location) ? (List) old.get(location) : new ArrayList();
      List right = now.containsKey(location) ? (List) now.get(location) : new ArrayList();
      removeEqual(left, right, same);
      boolean kept = left.size() == 1 && right.size() == 1;
      (kept ? before : removed).addAll(left);
      (kept ? after : added).addAll(right);
    }
  }

  /** Tasks whose data file only the old snapshot reads. */
  public List removed() {
    return removed;
  }

  /** Tasks whose data file only the new snapshot reads. */
  public List added() {
    return added;
  }

  /** The old snapshot's tasks of files that both read, with other delete files. */
  public List before() {
    return before;
  }

  /** The new snapshot's tasks of the same files. */
  public List after() {
    return after;
  }

  /** The new snapshot's tasks of files that both read with the same delete files. */
  public List same() {
    return same;
  }

  /** Those of them whose files may have a number within bounds in one of some columns; each a List of its name and both. */
  public List sameWithin(List bounds) throws java.io.IOException {
    Expression any = Expressions.alwaysFalse();
    for (int i = 0; i < bounds.size(); i++) {
      List each = (List) bounds.get(i);
      String name = (String) each.get(0);
      any = Expressions.or(any, Expressions.and(Expressions.greaterThanOrEqual(name, each.get(1)),
          Expressions.lessThanOrEqual(name, each.get(2))));
    }
    Set locations = new HashSet();
    CloseableIterable planned = ((TableScan) table.newScan().useSnapshot(end.longValue()).filter(any)).planFiles();
    try {
      Iterator each = planned.iterator();
      while (each.hasNext()) {
        locations.add(((FileScanTask) each.next()).file().location());
      }
    } finally {
      planned.close();
    }
    List found = new ArrayList();
    for (int i = 0; i < same.size(); i++) {
      if (locations.contains(((FileScanTask) same.get(i)).file().location())) {
        found.add(same.get(i));
      }
    }
    return found;
  }

  /** Rows of the new snapshot by its summary; -1 if it does not say. */
  public long total() {
    String value = (String) table.snapshot(end.longValue()).summary().get("total-records");
    return value != null && value.matches("[0-9]{1,18}") ? Long.parseLong(value) : -1;
  }

  /**
   * The rows of files that both snapshots read which are deleted in the new one only, each as its file and its position.
   * Null if they are more than so many, if a row is deleted in the old one only, or if a delete names no position.
   */
  public List newlyDeleted(int most) {
    List found = new ArrayList();
    for (int i = 0; i < after.size(); i++) {
      FileScanTask then = (FileScanTask) before.get(i);
      FileScanTask now = (FileScanTask) after.get(i);
      long known = positions(then);
      long all = positions(now);
      if (known < 0 || all < 0 || known + all > 20L * most) {
        return null;
      }
      Set old = new HashSet(load(then));
      List each = load(now);
      int kept = 0;
      for (int k = 0; k < each.size(); k++) {
        if (old.contains(each.get(k))) {
          kept++;
        } else {
          found.add(RowFactory.create(new Object[] {now.file().location(), each.get(k)}));
        }
      }
      if (kept < old.size() || found.size() > most) {
        return null;
      }
    }
    return found;
  }

  /** How many positions the delete files of a task name, at most; -1 if one of them deletes by values. */
  private static long positions(FileScanTask task) {
    long sum = 0;
    for (int i = 0; i < task.deletes().size(); i++) {
      DeleteFile file = (DeleteFile) task.deletes().get(i);
      if (file.content() != FileContent.POSITION_DELETES) {
        return -1;
      }
      sum += file.recordCount();
    }
    return sum;
  }

  private List load(FileScanTask task) {
    Positions found = new Positions();
    if (!task.deletes().isEmpty()) {
      BaseDeleteLoader loader = new BaseDeleteLoader(new Input(EncryptingFileIO.combine(table.io(), table.encryption())));
      loader.loadPositionDeletes(task.deletes(), task.file().location()).forEach(found);
    }
    return found.all;
  }

  /** Collects positions. */
  public static class Positions implements LongConsumer {
    private final List all = new ArrayList();

    public void accept(long position) {
      all.add(Long.valueOf(position));
    }
  }

  /** Opens a delete file. */
  public static class Input implements Function {
    private final EncryptingFileIO files;

    public Input(EncryptingFileIO files) {
      this.files = files;
    }

    public Object apply(Object file) {
      return files.newInputFile((DeleteFile) file);
    }
  }

  private Map tasks(Long snapshot) throws java.io.IOException {
    Map found = new HashMap();
    CloseableIterable planned = table.newScan().useSnapshot(snapshot.longValue()).planFiles();
    try {
      Iterator each = planned.iterator();
      while (each.hasNext()) {
        FileScanTask task = (FileScanTask) each.next();
        String location = task.file().location();
        if (!found.containsKey(location)) {
          found.put(location, new ArrayList(1));
        }
        ((List) found.get(location)).add(task);
      }
    } finally {
      planned.close();
    }
    return found;
  }

  private static void removeEqual(List left, List right, List same) {
    Iterator each = left.iterator();
    while (each.hasNext()) {
      Set wanted = deletes((FileScanTask) each.next());
      for (int i = 0; i < right.size(); i++) {
        if (wanted.equals(deletes((FileScanTask) right.get(i)))) {
          same.add(right.remove(i));
          each.remove();
          break;
        }
      }
    }
  }

  private static Set deletes(FileScanTask task) {
    Set keys = new HashSet();
    Iterator each = task.deletes().iterator();
    while (each.hasNext()) {
      DeleteFile file = (DeleteFile) each.next();
      keys.add(file.location() + "#" + file.contentOffset());
    }
    return keys;
  }

  /** Those of the tasks that have delete files. */
  public static List deleting(List tasks) {
    List found = new ArrayList();
    for (int i = 0; i < tasks.size(); i++) {
      if (!((FileScanTask) tasks.get(i)).deletes().isEmpty()) {
        found.add(tasks.get(i));
      }
    }
    return found;
  }

  /** Whether every row of the tasks has a row id. */
  public static boolean lineage(List tasks) {
    for (int i = 0; i < tasks.size(); i++) {
      if (((FileScanTask) tasks.get(i)).file().firstRowId() == null) {
        return false;
      }
    }
    return true;
  }

  /** Bytes to read for the tasks. */
  public static long bytes(List tasks) {
    long sum = 0;
    for (int i = 0; i < tasks.size(); i++) {
      sum += ((FileScanTask) tasks.get(i)).sizeBytes();
    }
    return sum;
  }

  /** Rows in the tasks' data files. */
  public static long rows(List tasks) {
    long sum = 0;
    for (int i = 0; i < tasks.size(); i++) {
      sum += ((FileScanTask) tasks.get(i)).file().recordCount();
    }
    return sum;
  }

  /**
   * The table for the reading of staged tasks: without snapshots, with the columns of the end. As of version 2 a
   * staged read knows _deleted, as of version 3 _row_id and _last_updated_sequence_number.
   */
  public Table reading(int version) {
    Schema schema = SnapshotUtil.schemaFor(table, end.longValue());
    StringBuilder specs = new StringBuilder();
    Iterator each = table.specs().values().iterator();
    while (each.hasNext()) {
      specs.append(specs.length() == 0 ? "" : ",").append(within(schema, (PartitionSpec) each.next()));
    }
    StringBuilder properties = new StringBuilder();
    Iterator entries = table.properties().entrySet().iterator();
    while (entries.hasNext()) {
      Map.Entry entry = (Map.Entry) entries.next();
      properties.append(properties.length() == 0 ? "" : ",");
      properties.append(quoted((String) entry.getKey())).append(":").append(quoted((String) entry.getValue()));
    }
    String json = "{\"format-version\":" + version + ",\"table-uuid\":" + quoted(table.uuid().toString())
        + ",\"location\":" + quoted(table.location())
        + ",\"last-sequence-number\":0,\"last-updated-ms\":0,\"next-row-id\":0"
        + ",\"last-column-id\":" + schema.highestFieldId()
        + ",\"current-schema-id\":" + schema.schemaId() + ",\"schemas\":[" + SchemaParser.toJson(schema) + "]"
        + ",\"default-spec-id\":" + table.spec().specId() + ",\"partition-specs\":[" + specs + "]"
        + ",\"last-partition-id\":" + Integer.MAX_VALUE
        + ",\"default-sort-order-id\":0,\"sort-orders\":[{\"order-id\":0,\"fields\":[]}]"
        + ",\"properties\":{" + properties + "},\"snapshots\":[]}";
    // There the readers look for columns that were dropped: an equality delete may be of one.
    String location = ((HasTableOperations) table).operations().current().metadataFileLocation();
    TableMetadata metadata = TableMetadataParser.fromJson(location, json);
    return new BaseTable(new Reading(metadata, table.io(), table.encryption()), table.name());
  }

  /** The same as of version 2, or null where a column's type came with version 3: then all rows of a file are read. */
  public Table readingDeletes() {
    try {
      return reading(2);
    } catch (RuntimeException e) {
      removed.addAll(before);
      added.addAll(after);
      before.clear();
      after.clear();
      return null;
    }
  }

  /** A partition spec, as JSON, without fields of columns that a schema does not have: later or earlier ones. */
  private static String within(Schema schema, PartitionSpec spec) {
    StringBuilder fields = new StringBuilder();
    Iterator each = spec.fields().iterator();
    while (each.hasNext()) {
      PartitionField field = (PartitionField) each.next();
      if (schema.findField(field.sourceId()) != null) {
        fields.append(fields.length() == 0 ? "" : ",");
        fields.append("{\"name\":").append(quoted(field.name()));
        fields.append(",\"transform\":").append(quoted(field.transform().toString()));
        fields.append(",\"source-id\":").append(field.sourceId());
        fields.append(",\"field-id\":").append(field.fieldId()).append("}");
      }
    }
    return "{\"spec-id\":" + spec.specId() + ",\"fields\":[" + fields + "]}";
  }

  private static String quoted(String text) {
    StringBuilder json = new StringBuilder("\"");
    for (int i = 0; i < text.length(); i++) {
      char c = text.charAt(i);
      if (c == '"' || c == '\\') {
        json.append('\\').append(c);
      } else if (c < ' ') {
        json.append(String.format("\\u%04x", new Object[] {Integer.valueOf(c)}));
      } else {
        json.append(c);
      }
    }
    return json.append('"').toString();
  }

  /** Fixed metadata, with the table's own way to its files. */
  public static class Reading extends StaticTableOperations {
    private final EncryptionManager encryption;

    public Reading(TableMetadata metadata, FileIO io, EncryptionManager encryption) {
      super(metadata, io);
      this.encryption = encryption;
    }

    public EncryptionManager encryption() {
      return encryption;
    }
  }
}

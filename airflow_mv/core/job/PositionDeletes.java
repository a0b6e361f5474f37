// SPDX-License-Identifier: Apache-2.0

import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.function.LongConsumer;
import org.apache.iceberg.ContentFile;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileContent;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.MetricsConfig;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.RowDelta;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableScan;
import org.apache.iceberg.TableUtil;
import org.apache.iceberg.data.BaseDeleteLoader;
import org.apache.iceberg.deletes.BaseDVFileWriter;
import org.apache.iceberg.deletes.PositionDelete;
import org.apache.iceberg.deletes.PositionDeleteIndex;
import org.apache.iceberg.deletes.PositionDeleteWriter;
import org.apache.iceberg.encryption.EncryptedOutputFile;
import org.apache.iceberg.encryption.EncryptingFileIO;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.DeleteWriteResult;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFileFactory;
import org.apache.iceberg.parquet.Parquet;
import org.apache.iceberg.types.Conversions;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.ContentFileUtil;
import org.apache.iceberg.util.Tasks;
import org.apache.iceberg.util.ThreadPools;
import org.apache.spark.sql.Row;

/**
 * Deletes rows of a table whose files and positions are known: writes position deletes (format version 2) or deletion
 * vectors (version 3), removes files without rows, and commits. No row is read. Compiled by the Janino that Spark ships:
 * no lambdas, no diamonds.
 */
public class PositionDeletes {
  private final Table table;
  private final String branch;
  private final Snapshot head;
  private final Map tasks = new HashMap();
  private final BaseDeleteLoader loader;
  private long rows;

  /**
   * Plans the newest snapshot of a branch, or of the table if the branch is null.
   *
   * @param bounded the columns whose bounds are wanted
   */
  public PositionDeletes(Table table, String branch, Collection bounded) throws java.io.IOException {
    this.table = table;
    this.branch = branch;
    this.loader = new BaseDeleteLoader(new Input(EncryptingFileIO.combine(table.io(), table.encryption())));
    this.head = branch == null ? table.currentSnapshot() : table.snapshot(branch);
    if (head == null) {
      return;
    }
    CloseableIterable planned = ((TableScan) ((TableScan) table.newScan().useSnapshot(head.snapshotId()))
        .includeColumnStats(bounded)).planFiles();
    try {
      Iterator each = planned.iterator();
      while (each.hasNext()) {
        FileScanTask task = (FileScanTask) each.next();
        tasks.put(task.file().location(), task);
        rows += task.file().recordCount();
      }
    } finally {
      planned.close();
    }
  }

  /** Rows in the data files, those that are deleted already included. */
  public long rows() {
    return rows;
  }

  /** The least and the greatest value of a column of whole numbers, dates or times as numbers; null if not known. */
  public long[] bounds(String column) {
    Types.NestedField field = table.schema().findField(column);
    Integer id = Integer.valueOf(field.fieldId());
    long[] found = new long[] {Long.MAX_VALUE, Long.MIN_VALUE};
    Iterator each = tasks.values().iterator();
    while (each.hasNext()) {
      ContentFile file = ((FileScanTask) each.next()).file();
      Object low = bound(file.lowerBounds(), field, id);
      Object high = bound(file.upperBounds(), field, id);
      if (!(low instanceof Number && high instanceof Number)) {
        return null;
      }
      found[0] = Math.min(found[0], ((Number) low).longValue());
      found[1] = Math.max(found[1], ((Number) high).longValue());
    }
    return found;
  }

  private static Object bound(Map bounds, Types.NestedField field, Integer id) {
    ByteBuffer bytes = bounds == null ? null : (ByteBuffer) bounds.get(id);
    return bytes == null ? null : Conversions.fromByteBuffer(field.type(), bytes);
  }

  /**
   * Whether rows may be deleted by position: the files that have them are known and not too many, and those that have
   * rows then keep most of them.
   *
   * @param mostFiles the most data files
   * @param mostShared the most delete files of a data file that are about other files, too
   * @param few so many rows of these files may be deleted in any case, those of earlier refreshes included
   * @param share else at most this share of their rows
   */
  public boolean suits(List found, int mostFiles, int mostShared, int few, double share) {
    Map positions = byFile(found);
    long deleted = 0L;
    long all = 0L;
    Iterator each = positions.entrySet().iterator();
    while (each.hasNext()) {
      Map.Entry entry = (Map.Entry) each.next();
      FileScanTask task = (FileScanTask) tasks.get(entry.getKey());
      if (task == null || task.deletes().size() - positionDeletes(task, true).size() > mostShared) {
        return false;
      }
      int more = ((List) entry.getValue()).size();
      if (!isEmptied(task, more)) {
        deleted += deleted(task) + more;
        all += task.file().recordCount();
      }
    }
    return positions.size() <= mostFiles && deleted <= Math.max(few, (long) (share * all));
  }

  /**
   * The files of position deletes, or the deletion vector, of a data file.
   *
   * @param own only those that are about no other file
   */
  private static List positionDeletes(FileScanTask task, boolean own) {
    List found = new ArrayList();
    for (int i = 0; i < task.deletes().size(); i++) {
      DeleteFile file = (DeleteFile) task.deletes().get(i);
      if (file.content() == FileContent.POSITION_DELETES && (!own || ContentFileUtil.isFileScoped(file))) {
        found.add(file);
      }
    }
    return found;
  }

  /** How many rows of a data file its own delete files delete at most: two may have the same position. */
  private static long deleted(FileScanTask task) {
    long found = 0L;
    List own = positionDeletes(task, true);
    for (int i = 0; i < own.size(); i++) {
      found += ((DeleteFile) own.get(i)).recordCount();
    }
    return found;
  }

  private PositionDeleteIndex load(List files, FileScanTask task) {
    return (PositionDeleteIndex) loader.loadPositionDeletes(files, task.file().location());
  }

  /** Whether a data file has no row after so many more are deleted. */
  private boolean isEmptied(FileScanTask task, int more) {
    List own = positionDeletes(task, true);
    long all = task.file().recordCount();
    if (own.size() < task.deletes().size() || deleted(task) + more < all) {
      return false;
    }
    return (own.isEmpty() ? 0L : load(own, task).cardinality()) + more == all;
  }

  /**
   * Deletes rows in one commit.
   *
   * @param found a Row for each, of its data file and its position there
   * @param summary what the snapshot's summary has, too
   * @param most with so many delete files of its own, a data file gets one in their place
   */
  public void commit(List found, Map summary, int most) throws Exception {
    Map positions = byFile(found);
    RowDelta delta = table.newRowDelta().validateFromSnapshot(head.snapshotId());
    removeEmptied(positions, delta);
    delta.validateDataFilesExist(positions.keySet());
    List written = TableUtil.formatVersion(table) > 2 ? vectors(positions) : files(positions, most);
    Iterator results = written.iterator();
    while (results.hasNext()) {
      DeleteWriteResult result = (DeleteWriteResult) results.next();
      for (int i = 0; i < result.deleteFiles().size(); i++) {
        delta.addDeletes((DeleteFile) result.deleteFiles().get(i));
      }
      for (int i = 0; i < result.rewrittenDeleteFiles().size(); i++) {
        delta.removeDeletes((DeleteFile) result.rewrittenDeleteFiles().get(i));
      }
    }
    Iterator entries = summary.entrySet().iterator();
    while (entries.hasNext()) {
      Map.Entry entry = (Map.Entry) entries.next();
      delta.set((String) entry.getKey(), (String) entry.getValue());
    }
    if (branch != null) {
      delta.toBranch(branch);
    }
    delta.commit();
  }

  /** Removes the data files that have no row then, with their deletes, from a commit and from the positions. */
  private void removeEmptied(Map positions, RowDelta delta) {
    Iterator each = positions.entrySet().iterator();
    while (each.hasNext()) {
      Map.Entry entry = (Map.Entry) each.next();
      FileScanTask task = (FileScanTask) tasks.get(entry.getKey());
      if (isEmptied(task, ((List) entry.getValue()).size())) {
        delta.removeRows((DataFile) task.file());
        List own = positionDeletes(task, true);
        for (int i = 0; i < own.size(); i++) {
          delta.removeDeletes((DeleteFile) own.get(i));
        }
        each.remove();
      }
    }
  }

  private static Map byFile(List found) {
    Map positions = new TreeMap();
    Iterator each = found.iterator();
    while (each.hasNext()) {
      Row row = (Row) each.next();
      String file = row.getString(0);
      if (!positions.containsKey(file)) {
        positions.put(file, new ArrayList());
      }
      ((List) positions.get(file)).add(Long.valueOf(row.getLong(1)));
    }
    return positions;
  }

  private PartitionSpec spec(FileScanTask task) {
    return (PartitionSpec) table.specs().get(Integer.valueOf(task.file().specId()));
  }

  private OutputFileFactory outputs(FileFormat format) {
    return OutputFileFactory.builderFor(table, 0, 0L).format(format).suffix("deletes").build();
  }

  /** One file of position deletes for each data file. They are written at the same time: a store may be far away. */
  private List files(Map positions, int most) throws Exception {
    List results = Collections.synchronizedList(new ArrayList());
    Writing writing = new Writing(outputs(FileFormat.PARQUET), metrics(), most, results);
    Tasks.foreach(positions.entrySet()).executeWith(ThreadPools.getWorkerPool()).stopOnFailure()
        .throwFailureWhenFinished().run(writing, Exception.class);
    return results;
  }

  /** The metrics of position deletes: until Iceberg 1.10 by the table, from 1.12 on the same for all. */
  private MetricsConfig metrics() throws Exception {
    Method[] methods = MetricsConfig.class.getMethods();
    for (int i = 0; i < methods.length; i++) {
      if (methods[i].getName().equals("forPositionDelete")) {
        Object[] arguments = methods[i].getParameterCount() == 0 ? new Object[0] : new Object[] {table};
        return (MetricsConfig) methods[i].invoke(null, arguments);
      }
    }
    throw new NoSuchMethodException("MetricsConfig.forPositionDelete");
  }

  /** Writes the file of position deletes of one data file. */
  private class Writing implements Tasks.Task {
    private final OutputFileFactory outputs;
    private final MetricsConfig metrics;
    private final int most;
    private final List results;

    Writing(OutputFileFactory outputs, MetricsConfig metrics, int most, List results) {
      this.outputs = outputs;
      this.metrics = metrics;
      this.most = most;
      this.results = results;
    }

    public void run(Object item) throws java.io.IOException {
      Map.Entry entry = (Map.Entry) item;
      FileScanTask task = (FileScanTask) tasks.get(entry.getKey());
      StructLike partition = task.file().partition();
      EncryptedOutputFile output = outputs.newOutputFile(spec(task), partition);
      Parquet.DeleteWriteBuilder builder = Parquet.writeDeletes(output);
      builder.setAll(table.properties());
      builder.metricsConfig(metrics);
      builder.withSpec(spec(task));
      builder.withPartition(partition);
      builder.withKeyMetadata(output.keyMetadata());
      List earlier = positionDeletes(task, true);
      boolean merges = earlier.size() >= most;
      List found = (List) entry.getValue();
      if (merges) {
        load(earlier, task).forEach(new Adding(found));
      }
      Collections.sort(found);
      PositionDeleteWriter writer = (PositionDeleteWriter) builder.buildPositionWriter();
      try {
        PositionDelete delete = PositionDelete.create();
        for (int i = 0; i < found.size(); i++) {
          writer.write(delete.set((String) entry.getKey(), ((Long) found.get(i)).longValue()));
        }
      } finally {
        writer.close();
      }
      DeleteWriteResult result = (DeleteWriteResult) writer.result();
      results.add(new DeleteWriteResult(
          result.deleteFiles(), result.referencedDataFiles(), merges ? earlier : Collections.EMPTY_LIST));
    }
  }

  /** Adds positions to a list. */
  private static class Adding implements LongConsumer {
    private final List positions;

    Adding(List positions) {
      this.positions = positions;
    }

    public void accept(long position) {
      positions.add(Long.valueOf(position));
    }
  }

  /** A deletion vector for each data file. It takes the place of the file's earlier deletes, and contains them. */
  private List vectors(Map positions) throws java.io.IOException {
    BaseDVFileWriter writer = new BaseDVFileWriter(outputs(FileFormat.PUFFIN), new Earlier());
    try {
      Iterator each = positions.entrySet().iterator();
      while (each.hasNext()) {
        Map.Entry entry = (Map.Entry) each.next();
        FileScanTask task = (FileScanTask) tasks.get(entry.getKey());
        List found = (List) entry.getValue();
        for (int i = 0; i < found.size(); i++) {
          long position = ((Long) found.get(i)).longValue();
          writer.delete((String) entry.getKey(), position, spec(task), task.file().partition());
        }
      }
    } finally {
      writer.close();
    }
    return Collections.singletonList(writer.result());
  }

  /** The positions of a data file that are deleted already; null for none. */
  private class Earlier implements Function {
    public Object apply(Object location) {
      FileScanTask task = (FileScanTask) tasks.get(location);
      List found = positionDeletes(task, false);
      return found.isEmpty() ? null : load(found, task);
    }
  }

  /** Opens a delete file. */
  public static class Input implements Function {
    private final EncryptingFileIO files;

    public Input(EncryptingFileIO files) {
      this.files = files;
    }

    public Object apply(Object file) {
      return (InputFile) files.newInputFile((DeleteFile) file);
    }
  }
}

// SPDX-License-Identifier: Apache-2.0

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
import org.apache.iceberg.ContentFile;
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
import org.apache.iceberg.formats.FileWriterBuilder;
import org.apache.iceberg.formats.FormatModelRegistry;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.DeleteWriteResult;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFileFactory;
import org.apache.iceberg.types.Conversions;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.Tasks;
import org.apache.iceberg.util.ThreadPools;
import org.apache.spark.sql.Row;

/**
 * Deletes rows of a table whose files and positions are known: writes position deletes (format version 2) or deletion
 * vectors (version 3), and commits them. No row is read. Compiled by the Janino that Spark ships: no lambdas, no diamonds.
 */
public class PositionDeletes {
  private final Table table;
  private final String branch;
  private final Snapshot head;
  private final Map tasks = new HashMap();
  private long rows;

  /**
   * Plans the newest snapshot of a branch, or of the table if the branch is null.
   *
   * @param bounded the columns whose bounds are wanted
   */
  public PositionDeletes(Table table, String branch, Collection bounded) throws java.io.IOException {
    this.table = table;
    this.branch = branch;
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

  /** Whether each data file of these rows is known, and has at most so many delete files. */
  public boolean suits(List found, int mostFiles, int mostDeleteFiles) {
    Map positions = byFile(found);
    Iterator each = positions.keySet().iterator();
    while (each.hasNext()) {
      FileScanTask task = (FileScanTask) tasks.get(each.next());
      if (task == null || task.deletes().size() > mostDeleteFiles) {
        return false;
      }
    }
    return positions.size() <= mostFiles;
  }

  /** Deletes rows in one commit. Each is a Row of its data file and its position there. */
  public void commit(List found, Map summary) throws Exception {
    Map positions = byFile(found);
    RowDelta delta = table.newRowDelta().validateFromSnapshot(head.snapshotId())
        .validateDataFilesExist(positions.keySet());
    Iterator results = (TableUtil.formatVersion(table) > 2 ? vectors(positions) : files(positions)).iterator();
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
  private List files(Map positions) throws Exception {
    List results = Collections.synchronizedList(new ArrayList());
    Tasks.foreach(positions.entrySet()).executeWith(ThreadPools.getWorkerPool()).stopOnFailure()
        .throwFailureWhenFinished().run(new Writing(outputs(FileFormat.PARQUET), results), Exception.class);
    return results;
  }

  /** Writes the file of position deletes of one data file. */
  private class Writing implements Tasks.Task {
    private final OutputFileFactory outputs;
    private final List results;

    Writing(OutputFileFactory outputs, List results) {
      this.outputs = outputs;
      this.results = results;
    }

    public void run(Object item) throws java.io.IOException {
      Map.Entry entry = (Map.Entry) item;
      FileScanTask task = (FileScanTask) tasks.get(entry.getKey());
      StructLike partition = task.file().partition();
      EncryptedOutputFile output = outputs.newOutputFile(spec(task), partition);
      FileWriterBuilder builder = FormatModelRegistry.positionDeleteWriteBuilder(FileFormat.PARQUET, output);
      builder.setAll(table.properties());
      builder.metricsConfig(MetricsConfig.forPositionDelete());
      builder.spec(spec(task));
      builder.partition(partition);
      builder.keyMetadata(output.keyMetadata());
      PositionDeleteWriter writer = (PositionDeleteWriter) builder.build();
      try {
        List sorted = (List) entry.getValue();
        Collections.sort(sorted);
        PositionDelete delete = PositionDelete.create();
        for (int i = 0; i < sorted.size(); i++) {
          writer.write(delete.set((String) entry.getKey(), ((Long) sorted.get(i)).longValue()));
        }
      } finally {
        writer.close();
      }
      results.add(writer.result());
    }
  }

  /** A deletion vector for each data file. It takes the place of the file's earlier deletes, and contains them. */
  private List vectors(Map positions) throws java.io.IOException {
    BaseDVFileWriter writer = new BaseDVFileWriter(outputs(FileFormat.PUFFIN), new Earlier(table, tasks));
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
  public static class Earlier implements Function {
    private final Map tasks;
    private final BaseDeleteLoader loader;

    public Earlier(Table table, Map tasks) {
      this.tasks = tasks;
      this.loader = new BaseDeleteLoader(new Input(EncryptingFileIO.combine(table.io(), table.encryption())));
    }

    public Object apply(Object location) {
      FileScanTask task = (FileScanTask) tasks.get(location);
      List found = new ArrayList();
      for (int i = 0; i < task.deletes().size(); i++) {
        DeleteFile file = (DeleteFile) task.deletes().get(i);
        if (file.content() == FileContent.POSITION_DELETES) {
          found.add(file);
        }
      }
      return found.isEmpty() ? null : (PositionDeleteIndex) loader.loadPositionDeletes(found, (String) location);
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

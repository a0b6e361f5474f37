// SPDX-License-Identifier: Apache-2.0
import java.io.ByteArrayInputStream;
import java.io.ObjectInputStream;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.Table;
import org.apache.iceberg.util.SnapshotUtil;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BindReferences;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.package$;
import org.apache.spark.sql.catalyst.expressions.codegen.CodeAndComment;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.FilterExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.WholeStageCodegenEvaluatorFactory;
import org.apache.spark.sql.execution.metric.SQLMetrics;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Seq;
import scala.reflect.ClassTag$;
import scala.util.Right;

/**
 * Reads the rows of scan tasks with RowLineageScan, which Spark compiles on its executors as it does its own code.
 * Compiled by the Janino that Spark ships: no lambdas, no diamonds.
 */
public class RowLineage {
  private static final String ID = "_row_id";
  private static final String VERSION = "_last_updated_sequence_number";
  private static final StructType ADDED = new StructType().add("copies", DataTypes.IntegerType, true)
      .add("found", DataTypes.LongType, true).add("kept", DataTypes.LongType, true).add("sum", DataTypes.LongType, true)
      .add("block", DataTypes.LongType, true).add("ids", DataTypes.BinaryType, true);
  private final SparkSession session;
  private final String source;
  private final Long start;
  private final boolean startIsAncestor;

  public RowLineage(Table table, SparkSession session, String source, Long start, Long end) {
    this.session = session;
    this.source = source;
    this.start = Long.valueOf(table.snapshot(start.longValue()).sequenceNumber());
    this.startIsAncestor = SnapshotUtil.isAncestorOf(table, end.longValue(), start.longValue());
  }

  /** Whether the start is an ancestor of the end: only then a version tells whether a row has changed since. */
  public boolean startIsAncestor() {
    return startIsAncestor;
  }

  /**
   * The rows of the new files that have changed, or match; with `kept`, the rows of the old files that are not kept.
   * Before the columns of the scan is one more, see ADDED. It counts the copies of the row. Of one more row of each
   * partition it has the number of rows, the number of kept rows and their checksum; of further ones a block of kept ids.
   *
   * @param frame the rows of one side, perhaps with a condition; its columns include the row's id and version
   * @param kept null, or the ids of the kept rows of the new files
   * @param matches for each of some columns its name, then a frame with one BIGINT column, the wanted values, none of them NULL
   * @param name of the added column
   */
  public Dataset scan(Dataset frame, Broadcast kept, List matches, String name) {
    SparkPlan plan = frame.queryExecution().executedPlan();
    Seq leaves = plan.collectLeaves();
    if (leaves.size() != 1) {
      throw new IllegalStateException("the rows of a file are read by another plan than expected: " + plan);
    }
    SparkPlan leaf = (SparkPlan) leaves.apply(0);
    Seq output = leaf.output();
    int width = output.size();
    // It is the first, because a reader may return more columns than its scan has.
    StructType schema = new StructType().add(name, ADDED, true);
    Map places = new HashMap();
    for (int i = 0; i < width; i++) {
      Attribute column = (Attribute) output.apply(i);
      places.put(column.name(), Integer.valueOf(i));
      schema = schema.add(column.name(), column.dataType(), true);
    }
    int[] columns = new int[matches.size() / 2];
    boolean[] isLong = new boolean[columns.length];
    long[][] values = new long[columns.length][];
    for (int i = 0; i < columns.length; i++) {
      columns[i] = ((Integer) places.get(matches.get(2 * i))).intValue();
      isLong[i] = DataTypes.LongType.equals(((Attribute) output.apply(columns[i])).dataType());
      values[i] = values((Dataset) matches.get(2 * i + 1));
    }
    Object[] references = new Object[] {places.get(ID), places.get(VERSION), start, Integer.valueOf(width),
        condition(plan, output), kept, columns, isLong, values};
    return mapped(leaf.supportsColumnar() ? leaf.executeColumnar() : leaf.execute(), references, schema);
  }

  private Dataset mapped(RDD rows, Object[] references, StructType schema) {
    WholeStageCodegenEvaluatorFactory code = new WholeStageCodegenEvaluatorFactory(
        new Right(new CodeAndComment(source, Map$.MODULE$.empty())),
        SQLMetrics.createMetric(session.sparkContext(), "duration"), references);
    return session.internalCreateDataFrame(
        rows.mapPartitionsWithEvaluator(code, ClassTag$.MODULE$.apply(InternalRow.class)), schema, false);
  }

  /** The condition that Spark would apply to the rows of a scan, or null. */
  private static Expression condition(SparkPlan plan, Seq output) {
    Expression found = null;
    Iterator each = nodes(plan, new ArrayList()).iterator();
    while (each.hasNext()) {
      SparkPlan node = (SparkPlan) each.next();
      if (node instanceof FilterExec) {
        Expression bound = (Expression) BindReferences.bindReference(((FilterExec) node).condition(),
            package$.MODULE$.AttributeSeq(output), false);
        found = found == null ? bound : new org.apache.spark.sql.catalyst.expressions.And(found, bound);
      }
    }
    return found;
  }

  private static List nodes(SparkPlan plan, List found) {
    found.add(plan);
    Seq children = plan.children();
    for (int i = 0; i < children.size(); i++) {
      nodes((SparkPlan) children.apply(i), found);
    }
    return found;
  }

  private static long[] values(Dataset frame) {
    List rows = frame.collectAsList();
    long[] values = new long[rows.size()];
    for (int i = 0; i < values.length; i++) {
      values[i] = ((Row) rows.get(i)).getLong(0);
    }
    return values;
  }

  /**
   * What the last rows of all partitions say.
   *
   * @param last the rows with the numbers, without other columns
   * @param blocks null, or the blocks of ids, where all parts of a block are in one partition
   */
  public Summary summary(Dataset last, Dataset blocks) throws Exception {
    Summary found = new Summary(session, last.collectAsList());
    if (blocks != null) {
      StructType schema = new StructType().add("ids", DataTypes.BinaryType, true);
      Iterator rows = mapped(blocks.queryExecution().toRdd(), new Object[0], schema).collectAsList().iterator();
      while (rows.hasNext()) {
        byte[] bytes = (byte[]) ((Row) rows.next()).get(0);
        found.ids.putAll((Map) new ObjectInputStream(new ByteArrayInputStream(bytes)).readObject());
      }
    }
    return found;
  }

  /** The rows of one side: how many were found, and which ones were kept. */
  public static class Summary {
    private final SparkSession session;
    private final HashMap ids = new HashMap();
    private long found;
    private long kept;
    private long sum;

    Summary(SparkSession session, List rows) {
      this.session = session;
      for (int i = 0; i < rows.size(); i++) {
        Row row = (Row) rows.get(i);
        found += row.getLong(0);
        kept += row.getLong(1);
        sum += row.getLong(2);
      }
    }

    public long found() {
      return found;
    }

    /** Whether both sides have kept the same rows. */
    public boolean equals(Object other) {
      return other instanceof Summary && kept == ((Summary) other).kept && sum == ((Summary) other).sum;
    }

    public int hashCode() {
      return (int) sum;
    }

    /** The kept ids for the executors: containers of 65,536 ids, by the ids' higher bits. */
    public Broadcast kept() {
      return session.sparkContext().broadcast(ids, ClassTag$.MODULE$.apply(Object.class));
    }
  }
}

// SPDX-License-Identifier: Apache-2.0
// The body of a class that Spark's code generator compiles on executors, see RowLineage. Its Janino knows no generics.

public Object generate(Object[] references) {
  return references.length == 0 ? (Object) new KeptIds() : (Object) new RowLineageScan(references);
}

/**
 * Of the new files it yields the rows whose version is later than the first snapshot's, and those that match; of the
 * old files the rows whose ids are not kept ones. The other rows are in both snapshots. At the end one more row has the
 * number of rows, the number of kept rows, and their checksum. Of the new files further rows have the kept ids: for each
 * block of 65,536 ids its number and its ids.
 */
final class RowLineageScan extends org.apache.spark.sql.execution.BufferedRowIterator {
  private static final long FREE = Long.MIN_VALUE;
  /** Of 8 KiB each. They are faster than sorted arrays, which further blocks have. */
  private static final int MOST_BITMAPS = 4096;
  private final int id;
  private final int version;
  private final long start;
  private final org.apache.spark.sql.catalyst.expressions.BasePredicate condition;
  private final boolean isOld;
  private final java.util.HashMap blocks;
  private final int[] columns;
  private final boolean[] isLong;
  private final long[][] wanted;
  private final InternalRow none;
  private final org.apache.spark.sql.catalyst.expressions.JoinedRow joined =
      new org.apache.spark.sql.catalyst.expressions.JoinedRow();
  private final InternalRow[] copies = new InternalRow[] {counted(-1), counted(0), counted(1)};
  private scala.collection.Iterator input;
  private org.apache.spark.sql.vectorized.ColumnarBatch batch;
  private int next;
  private java.util.Iterator last;
  private long block = -1L;
  private org.roaringbitmap.Container ids;
  private long found;
  private long kept;
  private long sum;

  RowLineageScan(Object[] references) {
    id = ((Integer) references[0]).intValue();
    version = ((Integer) references[1]).intValue();
    start = ((Long) references[2]).longValue();
    none = new org.apache.spark.sql.catalyst.expressions.GenericInternalRow(
        new Object[((Integer) references[3]).intValue()]);
    condition = references[4] == null ? null : (org.apache.spark.sql.catalyst.expressions.BasePredicate)
        org.apache.spark.sql.catalyst.expressions.Predicate$.MODULE$.create(
            (org.apache.spark.sql.catalyst.expressions.Expression) references[4]);
    isOld = references[5] != null;
    blocks = isOld ? (java.util.HashMap) ((org.apache.spark.broadcast.Broadcast) references[5]).value()
        : new java.util.HashMap();
    columns = (int[]) references[6];
    isLong = (boolean[]) references[7];
    long[][] values = (long[][]) references[8];
    wanted = new long[values.length][];
    for (int i = 0; i < values.length; i++) {
      wanted[i] = hashed(values[i]);
    }
  }

  public void init(int index, scala.collection.Iterator[] inputs) {
    partitionIndex = index;
    input = inputs[0];
    if (condition != null) {
      condition.initialize(index);
    }
  }

  protected void processNext() throws java.io.IOException {
    InternalRow row = following();
    while (row != null) {
      if (condition == null || condition.eval(row)) {
        int number = isOld ? old(row) : changed(row);
        if (number != 0 || (!isOld && matches(row))) {
          found++;
          append(joined.apply(copies[number + 1], row));
          return;
        }
      }
      row = following();
    }
    if (last == null) {
      last = isOld ? new java.util.ArrayList().iterator() : blocks.entrySet().iterator();
      append(joined.apply(
          added(null, Long.valueOf(found), Long.valueOf(kept), Long.valueOf(sum), null, null), none));
    } else if (last.hasNext()) {
      java.util.Map.Entry entry = (java.util.Map.Entry) last.next();
      Object ids = ((org.roaringbitmap.Container) entry.getValue()).runOptimize();
      append(joined.apply(added(null, null, null, null, entry.getKey(), bytes(ids)), none));
    }
  }

  /** The next row, of a batch or alone; null after the last one. */
  private InternalRow following() {
    while (batch == null || next == batch.numRows()) {
      if (!input.hasNext()) {
        return null;
      }
      Object item = input.next();
      if (item instanceof InternalRow) {
        return (InternalRow) item;
      }
      batch = (org.apache.spark.sql.vectorized.ColumnarBatch) item;
      next = 0;
    }
    return batch.getRow(next++);
  }

  private int changed(InternalRow row) {
    long number = known(row, id);
    long last = known(row, version);
    if (last > start) {
      return 1;
    }
    find(number);
    if (ids == null) {
      ids = blocks.size() < MOST_BITMAPS ? new org.roaringbitmap.BitmapContainer()
          : new org.roaringbitmap.ArrayContainer();
      blocks.put(Long.valueOf(block), ids);
    }
    org.roaringbitmap.Container more = (org.roaringbitmap.Container) ids.add(low(number));
    if (more != ids) {
      ids = more;
      blocks.put(Long.valueOf(block), ids);
    }
    count(number, last);
    return 0;
  }

  private int old(InternalRow row) {
    long number = known(row, id);
    find(number);
    if (ids == null || !ids.contains(low(number))) {
      return -1;
    }
    count(number, known(row, version));
    return 0;
  }

  private static long known(InternalRow row, int column) {
    if (row.isNullAt(column)) {
      throw new IllegalStateException("a row has no id or no version");
    }
    return row.getLong(column);
  }

  /** Set the container of an id. Rows with ids that are close are often together. */
  private void find(long number) {
    long here = number >>> 16;
    if (here != block || ids == null) {
      block = here;
      ids = (org.roaringbitmap.Container) blocks.get(Long.valueOf(here));
    }
  }

  /** Janino does not cast a long to a char as Java does. */
  private static char low(long number) {
    int bits = (int) number & 65535;
    return (char) bits;
  }

  /** Both sides have the same number of kept rows, and the same sum of their hashes, or something else has happened. */
  private void count(long number, long last) {
    kept++;
    long mixed = (number + last * 0x9E3779B97F4A7C15L) * 0xBF58476D1CE4E5B9L;
    mixed = (mixed ^ (mixed >>> 31)) * 0x94D049BB133111EBL;
    sum += mixed ^ (mixed >>> 29);
  }

  private boolean matches(InternalRow row) {
    for (int i = 0; i < columns.length; i++) {
      if (!row.isNullAt(columns[i])) {
        long value = isLong[i] ? row.getLong(columns[i]) : row.getInt(columns[i]);
        if (value == FREE) {
          return true;
        }
        long[] table = wanted[i];
        int place = place(value, table.length);
        while (table[place] != FREE) {
          if (table[place] == value) {
            return true;
          }
          place = (place + 1) & (table.length - 1);
        }
      }
    }
    return false;
  }

  /** An open hash table. One value stands for a free place, so its rows always match: more rows than wanted do no harm. */
  private static long[] hashed(long[] values) {
    int size = 16;
    while (size < 4 * values.length) {
      size *= 2;
    }
    long[] table = new long[size];
    java.util.Arrays.fill(table, FREE);
    for (int i = 0; i < values.length; i++) {
      int place = place(values[i], size);
      while (table[place] != FREE) {
        place = (place + 1) & (size - 1);
      }
      table[place] = values[i];
    }
    return table;
  }

  private static int place(long value, int size) {
    long mixed = value * 0x9E3779B97F4A7C15L;
    return (int) (mixed >>> 32) & (size - 1);
  }

  private static InternalRow counted(int copies) {
    return added(Integer.valueOf(copies), null, null, null, null, null);
  }

  /** A row with one value, of the type that RowLineage.ADDED has. */
  private static InternalRow added(Object copies, Object found, Object kept, Object sum, Object block, Object ids) {
    InternalRow value = new org.apache.spark.sql.catalyst.expressions.GenericInternalRow(
        new Object[] {copies, found, kept, sum, block, ids});
    return new org.apache.spark.sql.catalyst.expressions.GenericInternalRow(new Object[] {value});
  }
}

private static byte[] bytes(Object object) throws java.io.IOException {
  java.io.ByteArrayOutputStream bytes = new java.io.ByteArrayOutputStream();
  java.io.ObjectOutputStream out = new java.io.ObjectOutputStream(bytes);
  out.writeObject(object);
  out.close();
  return bytes.toByteArray();
}

/**
 * Merges the ids of blocks, each a number and ids, into one row with a map of them. Files that a MERGE has written have
 * ids of all blocks each, but together nearly all ids of a block, which are few runs.
 */
final class KeptIds extends org.apache.spark.sql.execution.BufferedRowIterator {
  private scala.collection.Iterator input;
  private boolean ended;

  public void init(int index, scala.collection.Iterator[] inputs) {
    partitionIndex = index;
    input = inputs[0];
  }

  protected void processNext() throws java.io.IOException {
    if (ended) {
      return;
    }
    ended = true;
    java.util.HashMap blocks = new java.util.HashMap();
    while (input.hasNext()) {
      InternalRow row = (InternalRow) input.next();
      Long block = Long.valueOf(row.getLong(0));
      org.roaringbitmap.Container known = (org.roaringbitmap.Container) blocks.get(block);
      org.roaringbitmap.Container more = container(row.getBinary(1));
      blocks.put(block, known == null ? more : known.or(more));
    }
    java.util.Iterator each = blocks.entrySet().iterator();
    while (each.hasNext()) {
      java.util.Map.Entry entry = (java.util.Map.Entry) each.next();
      entry.setValue(((org.roaringbitmap.Container) entry.getValue()).runOptimize());
    }
    append(new org.apache.spark.sql.catalyst.expressions.GenericInternalRow(new Object[] {bytes(blocks)}));
  }

  private static org.roaringbitmap.Container container(byte[] bytes) throws java.io.IOException {
    try {
      return (org.roaringbitmap.Container)
          new java.io.ObjectInputStream(new java.io.ByteArrayInputStream(bytes)).readObject();
    } catch (ClassNotFoundException e) {
      throw new IllegalStateException(e);
    }
  }
}

// SPDX-License-Identifier: Apache-2.0

import java.util.Map;
import java.util.concurrent.Callable;
import org.apache.iceberg.spark.CommitMetadata;
import org.apache.spark.sql.SparkSession;

/**
 * Runs statements whose commits get further entries in their summaries, for an Iceberg that takes none from settings.
 * Compiled by the Janino that Spark ships.
 */
public class Stamped {
  private final SparkSession session;

  public Stamped(SparkSession session) {
    this.session = session;
  }

  public void run(String sql, Map summary) throws Exception {
    CommitMetadata.withCommitProperties(summary, new Statement(session, sql), Exception.class);
  }

  /** One statement. */
  private static class Statement implements Callable {
    private final SparkSession session;
    private final String sql;

    Statement(SparkSession session, String sql) {
      this.session = session;
      this.sql = sql;
    }

    public Object call() {
      return session.sql(sql);
    }
  }
}

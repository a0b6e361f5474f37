// SPDX-License-Identifier: Apache-2.0

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.delta.stats.PrepareDeltaScan;

/**
 * An optimizer rule: apply Delta's rule PrepareDeltaScan to the query of a statement that writes into another table.
 *
 * Delta's rule leaves such statements out, because a write into a Delta table is planned a second time. A scan without
 * it fails if a file has a deletion vector. Compiled by the Janino that Spark ships.
 */
public class DeltaWrites extends Rule {
    private final SparkSession spark;

    public DeltaWrites(SparkSession spark) {
        this.spark = spark;
    }

    public TreeNode apply(TreeNode plan) {
        if (!(plan instanceof V2WriteCommand)) {
            return plan;
        }
        V2WriteCommand write = (V2WriteCommand) plan;
        // A new one for each plan: it remembers the snapshots of the tables that it has seen.
        PrepareDeltaScan rule = new PrepareDeltaScan(spark);
        return (TreeNode) write.withNewQuery(rule.apply((LogicalPlan) write.query()));
    }
}

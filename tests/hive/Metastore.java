// SPDX-License-Identifier: Apache-2.0
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.conf.MetastoreConf;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;

/** A Hive Metastore with the tables for locks, which otherwise only Hive's schema tool creates. */
public class Metastore {
  public static void main(String[] arguments) throws Throwable {
    TxnDbUtil.prepDb(MetastoreConf.newMetastoreConf());
    HiveMetaStore.main(arguments);
  }
}

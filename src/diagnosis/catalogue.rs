//! The table of causes: each row has the name of a finding, its severity, a description, and a remedy for each cause.

use super::Severity::{self, Critical, Note, Warning};

/// The remedy that clears the finding for a loss.
pub const ACKNOWLEDGE: &str =
    "after you have handled the loss, run `eds loss acknowledge` (`eds loss` lists it)";
pub(super) const QUARANTINED: &str = "read the server's error message with `eds quarantine list --output NAME` and fix the server; then run `eds quarantine retry --all \
     --output NAME` or `eds quarantine drop --all --output NAME`. Once the quarantine is full, rejected counts are lost";
const AS_DOCUMENTED: &str = "change the senders to write lines in the format described in docs/input.md; `eds status` shows the most frequent reason with an example";
pub(super) const RELIEVE: &str = "fix the store or reduce its load; raise input.queue_events and input.queue_bytes, or set input.spool_dir";

macro_rules! append_only {
    () => {
        "run `CONFIG SET appendonly yes`, and set `appendonly yes` in redis.conf"
    };
}
pub(super) use append_only;

macro_rules! despite_append_only {
    () => {
        "although Redis has an append-only file, writes were lost; check the Redis log to find out whether the data was deleted or restored, the host crashed, or a replica that was missing \
         the last writes took over (with replicas, set min-replicas-to-write 1 on the master); raise store.replay_window above the number of seconds of writes that a crash can lose"
    };
}

macro_rules! causes {
    ($($cause:ident $id:literal $severity:ident $what:literal => $remedy:expr $(, $kind:ident => $kind_remedy:expr)*;)*) => {
        /// The cause of a finding. Findings of the same severity are shown in the order of their causes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "the table describes each variant")]
        pub enum Cause { $($cause, $($kind,)*)* }

        impl Cause {
            /// All causes.
            pub const ALL: &[Self] = &[$(Self::$cause, $(Self::$kind,)*)*];

            /// Returns the name of this cause's finding, for use by programs.
            #[must_use]
            pub const fn id(self) -> &'static str {
                match self { $(Self::$cause $(| Self::$kind)* => $id,)* }
            }

            /// Returns the severity of this cause's finding.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self { $(Self::$cause $(| Self::$kind)* => $severity,)* }
            }

            /// Returns a description of the problem, worded to follow the name of the affected server, node or output.
            #[must_use]
            pub const fn what(self) -> &'static str {
                match self { $(Self::$cause $(| Self::$kind)* => $what,)* }
            }

            /// Returns the operator's remedy for the problem.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$cause => $remedy, $(Self::$kind => $kind_remedy,)*)* }
            }
        }
    };
}

causes! {
    RedisDown "redis-down" Critical "is unavailable; the nodes queue events, and minutes stay open" =>
        "start Redis, or check store.url and the network; the nodes keep up to input.queue_events events in memory and more in input.spool_dir, and record them once Redis is available",
        RedisCredentials => "set store.username and store.password_file to the credentials of a Redis user (`ACL LIST` shows all users)",
        RedisServerCertificate => "check the server's certificate, the host in store.url, and store.ca_file",
        RedisClientCertificate => "the server requires a client certificate that it trusts; check store.cert_file and store.key_file",
        RedisClientCertificateMissing => "the server closed the TLS connection immediately, so it may require a client certificate; check store.cert_file and store.key_file",
        RedisIsTls => "the server closed the connection immediately, so it may accept only TLS; use rediss:// in store.url",
        RedisNoTls => "the server accepts connections but does not respond, so it may not support TLS; use redis:// in store.url to connect without TLS",
        RedisNotTls => "check store.url; rediss:// requires a TLS server, but the response is not TLS",
        NotRedis => "check the host and port in store.url; use rediss:// if the server requires TLS",
        RedisUnreachable => "check the host and port in store.url, and any firewalls",
        RedisNoCluster => "this Redis is not a cluster; use redis:// in store.url",
        RedisIsCluster => "this Redis is a cluster; use redis+cluster:// in store.url",
        RedisNoSentinel => "this server is not a Sentinel; check the port in store.url, or use redis:// to connect to Redis directly",
        RedisIsSentinel => "this server is a Sentinel; use redis+sentinel://host:port/name in store.url",
        RedisMasterName => "set the name at the end of store.url to one listed by `SENTINEL MASTERS`",
        RedisDatabase => "check the database number at the end of store.url, and `databases` in redis.conf";
    RedisReadOnly "redis-read-only" Critical "rejects writes" => "resolve the reported error; the nodes queue events until Redis accepts writes";
    RedisReplica "redis-read-only" Critical "rejects writes because it is a replica" =>
        "set store.url to the master or its Sentinels (redis+sentinel://…), or promote this server with `REPLICAOF NO ONE`";
    RedisTooFewReplicas "redis-read-only" Critical "rejects writes because it has fewer replicas than min-replicas-to-write" =>
        "start a replica, or allow writes without one with `CONFIG SET min-replicas-to-write 0`; the nodes queue events until then";
    RedisDiskFails "redis-read-only" Critical "rejects writes because it cannot write to its disk" =>
        "check the disk and the Redis log; Redis will accept writes again after the next successful snapshot (`BGSAVE`) or write to its append-only file";
    RedisClusterDown "redis-read-only" Critical "rejects writes because some cluster slots have no master" =>
        "start the masters that are down, or promote their replicas; `redis-cli --cluster check ADDRESS` lists the slots without a master, and \
         `redis-cli --cluster fix ADDRESS` assigns them to masters. The nodes queue events until then";
    RedisRights "redis-read-only" Critical "denies the configured user a required permission" =>
        "grant the user access to the commands and keys listed in config/redis-acl.conf";
    RedisLoading "redis-read-only" Critical "rejects writes because it is loading its data" =>
        "wait until Redis has loaded its data (see its log); the nodes queue events until then";
    RedisFull "redis-full" Critical "is out of memory; the nodes queue events" =>
        "raise maxmemory with `CONFIG SET maxmemory BYTES` and in redis.conf (docs/limits.md explains how to calculate it), or reduce the number of users or series";
    RedisUnfit "redis-unfit" Critical "is not suitable as the store" => "use Redis 7.0 or later, or Valkey",
        RedisEvicts => "run `CONFIG SET maxmemory-policy noeviction`, and set `maxmemory-policy noeviction` in redis.conf";
    RedisFills "redis-fills" Warning "uses nearly all of its maxmemory" => "raise maxmemory; once Redis is full, the nodes can only queue events";
    RedisForgets "redis-forgets" Warning "has no append-only file" => append_only!();
    RedisCannotSave "redis-cannot-save" Warning "failed to save its data" =>
        "check the disk and the Redis log; a restart of Redis would lose its data";
    RedisClock "redis-clock" Note "its clock differs from this host's" => "check the clocks of both hosts with `chronyc tracking` or `timedatectl`";

    NodeSilent "node-silent" Critical "is not reporting" =>
        "check its host with `systemctl status eds` and `journalctl -u eds`. Other nodes take over its minutes; events that only this node receives are lost";
    Stalled "stalled" Critical "is stalled" =>
        "check that its log output is being read, because a full pipe or a stopped terminal blocks threads that log; otherwise, restart it, and report the problem together with its log";
    NodeCannotRecord "node-cannot-record" Critical "cannot use the store, so it queues events" =>
        "resolve the reported error; check the network between this node and Redis",
        MemoryFull => "raise store.memory_max, or use Redis",
        MemoryCrowded => "raise store.partitions, or use Redis";
    NodeSettings "node-settings" Critical "does not close minutes or send counts, because its settings differ from the cluster-wide settings" =>
        "resolve the reported error; `eds settings show` on that host prints the differences";
    NodeDrops "node-drops" Critical "lost events that it had received" => ACKNOWLEDGE;
    KernelDrops "kernel-drops" Critical "lost datagrams that the kernel dropped" => ACKNOWLEDGE;
    SocketFails "socket-fails" Critical "cannot read from a socket; lines sent to that socket are lost" =>
        "check its log and restart it, along with its .socket unit if systemd holds the socket";
    Forgotten "forgotten" Critical "Redis lost acknowledged writes" => ACKNOWLEDGE, ForgottenDespiteAppendOnly => despite_append_only!();
    Unconfirmed "unconfirmed" Critical "Redis lost minutes while they were being written to an output" => ACKNOWLEDGE,
        UnconfirmedDespiteAppendOnly => concat!("compare the points for these minutes with the expected counts; ", despite_append_only!());
    WindowsIncomplete "windows-incomplete" Critical "Redis lost users of windows that were open" => ACKNOWLEDGE;
    SpoolFills "spool-fills" Critical "its spool is nearly full" => "fix the store or reduce its load; raise input.spool_max";
    RejectsLines "rejects-lines" Warning "rejects many lines" => AS_DOCUMENTED;
    QueueFills "queue-fills" Warning "its queue is at least half full" => RELIEVE;
    NodeLags "node-lags" Warning "has not been able to record all events" =>
        "fix the store or reduce its load; check the network between this node and Redis";
    NodeLoses "node-loses" Warning "saw fewer events than other nodes" =>
        "check the network and the relays in front of this node, eds_kernel_drops_total, and /api/v1/coverage";
    Clock "clock" Warning "its clock differs from the store's clock, which determines when minutes close" =>
        "check the clocks of its host and the store's host with `chronyc tracking` or `timedatectl`";
    Late "late" Warning "events arrived after their minute had closed" => ACKNOWLEDGE;
    UnstampedCopies "unstamped-copies" Warning "two nodes receive the same lines without timestamps, so these lines count twice" =>
        "change the senders to add a timestamp to each line, or send the lines to eds relay, which adds one before forwarding a line to several nodes (docs/input.md)";
    StampsCoincide "stamps-coincide" Warning "events with the same series, user and timestamp count as one" =>
        "change the senders to send nanoseconds, or to increment the last digits of a coarse timestamp (docs/input.md); ignore this if the events are duplicates";
    Overflow "overflow" Warning "counts events under an overflow series" =>
        "find the tag with too many values (/api/v1/series), or raise input.max_series_per_minute with `eds settings apply` and restart all nodes";
    Version "version" Warning "runs a different version than the other nodes" => "finish the upgrade, or roll back (docs/upgrades.md)";
    NameTaken "name-taken" Warning "another process uses the same name" => "give each node and relay a unique name (`node` or EDS_NODE)";
    StampsRounded "stamps-rounded" Note "timestamps are whole milliseconds or seconds, so events with the same series, user and timestamp count as one" =>
        "change the senders to send nanoseconds, or to increment the last digits (docs/input.md); if such coarse timestamps are intended, set input.timestamp_precision";
    RejectsFew "rejects-few" Note "rejects some lines" => AS_DOCUMENTED;
    ReportUnreadable "report-unreadable" Note "its report is partly unreadable" => "run this command with the version of eds that wrote the report, or open the status page of that process";

    RelaySilent "relay-silent" Critical "is not reporting" =>
        "check its host with `systemctl status eds-relay` and `journalctl -u eds-relay`. Lines sent to it are lost until it runs again";
    RelayLoop "relay-loop" Critical "receives lines that it sent itself, because relays form a loop; it drops these lines" =>
        "use only nodes in relay.to, or relays that are closer to the nodes; the relay at the source address of these lines must not send lines back to this relay";
    RelayPassthroughLoop "relay-loop" Critical "receives passthrough lines that it sent itself, because relays form a loop; it drops these lines" =>
        "set passthrough.url on one of these relays to the server that the lines are meant for";
    RelayNowhere "relay-nowhere" Critical "could not send events to any node" => ACKNOWLEDGE;
    RelayPassthroughDrops "relay-passthrough-drops" Critical "lost passthrough lines" => ACKNOWLEDGE;
    RelayNodeDown "relay-node-down" Warning "cannot send to a node" =>
        "start the node, or check its address in relay.to and the network";
    RelayPassthroughDown "relay-passthrough-down" Warning "cannot send passthrough lines" =>
        "start the server, or check passthrough.url and the network; the relay sends queued lines once the server is available";
    RelayRejects "relay-rejects" Warning "rejects lines" =>
        "change the senders to write lines in the format described in docs/input.md; eds_relay_lines_rejected_total shows the reasons";
    RelayDiscards "relay-discards" Warning "discards lines that are not events, because passthrough.url is \"none:\"" =>
        "set passthrough.url to the server for these lines, or change the senders to send them there directly";

    NoNode "no-node" Critical "no node is reporting" =>
        "start the nodes (`systemctl start eds`), and check that they use the same store.url and store.prefix as this configuration";
    Discarded "discarded" Critical "lost counts that an output rejected" => QUARANTINED;
    OutputDown "output-down" Critical "is not accepting points; the store keeps the counts" =>
        "start the server, or check output.url and the network; the nodes send unsent counts once the server is available",
        OutputHangsUp => "start the server; if it is running, check output.url, because a server that requires https:// or is not InfluxDB may close the connection",
        OutputOverloaded => "the server responds but does not accept writes; check its log, limits and load, and any proxy. The nodes send unsent counts \
                             once it accepts points",
        OutputRejectsAll => "check output.url and output.api, the server's limits, the type of the field `value`, and any proxy",
        OutputNoDatabase => "set output.database",
        OutputNoOrg => "set output.org",
        OutputPath => "check the path in output.url",
        OutputIsTls => "output.url must begin with https://",
        OutputPrecision => "check output.api; the server does not support nanosecond timestamps",
        OutputPassword => "check output.username and output.password_file",
        OutputUserRight => "grant the user in output.username write permission on the database in output.database",
        OutputDatabase => "create the database, or check output.database",
        OutputNoWrite => "check output.url and output.api; the server has no /write endpoint",
        OutputToken => "check output.token_file",
        OutputTokenRight => "grant the token in output.token_file write permission on the bucket in output.bucket",
        OutputBucket => "create the bucket, or check output.bucket",
        OutputOrg => "check output.org",
        OutputNoWrite2 => "check output.url and output.api; the server has no /api/v2/write endpoint",
        OutputLogin => "check output.token_file, or output.username and output.password_file, and the rights of that user",
        OutputNoPath => "check output.url, which must contain the path of the write API; for remote write, Prometheus also needs --web.enable-remote-write-receiver",
        OutputNoApi => "check output.url and output.api; a server without remote write 2.0 needs output.api = \"remote-write-v1\"",
        OutputOrder => "set storage.tsdb.out_of_order_time_window in prometheus.yml, for example to 1d, the longest outage to survive (docs/outputs.md)",
        OutputNoGzip => "set output.gzip = false; the server, or a proxy before it, does not accept compressed writes",
        OutputMoved => "set output.url to the final address; eds does not follow redirects",
        NotInfluxDb => "check output.url and output.api; the response is not one that InfluxDB sends",
        OutputBug => "report this bug; eds wrote a line that its own parser considers invalid",
        OutputCertificate => "check the server's certificate, the host in output.url, and output.ca_file",
        OutputNotTls => "check output.url; https:// requires a TLS server, but the response is not TLS";
    Collector "collector" Warning "does not accept metrics or traces, which are dropped; counts are not affected" =>
        "check telemetry.otlp_url, telemetry.token_file, telemetry.ca_file and the collector's log";
    QuarantineFull "quarantine-full" Critical "its quarantine is at least half full" => QUARANTINED;
    Quarantine "quarantine" Warning "has quarantined counts" => QUARANTINED;
    Settings "settings" Warning "differs from the cluster-wide settings in the store" =>
        "use the same settings on every node; to change them, run `eds settings apply` with the new configuration and restart each node with it",
        SettingsFormat => "on every node, run a version that reads this format, such as the one that wrote it",
        SettingsDivision => "use the same number of partitions on every node; to change it, also set store.partitions_before and \
                             store.partitions_from, and run `eds settings apply`",
        SettingsOutdated => "restart it with the new configuration, which `eds settings show` prints; until then, it does not record events for these minutes";
    Leftovers "leftovers" Warning "Redis has unsent data that was stored with a different number of partitions or a removed rollup, so no node sends it" =>
        "to send it, restore that number of partitions with store.partitions_before, or the rollup, and run `eds settings apply`";
    Unsent "unsent" Warning "is missing a minute that ended long ago" => "check `eds outputs list`, and the nodes' logs for the reason",
        OutputGone => "configure this output again to send its counts, or drop them with `eds outputs drop NAME`";
    OldMinutes "old-minutes" Note "minutes that ended long ago have not been sealed" =>
        "no action is needed while an archive is being replayed, because recent minutes are sealed first; otherwise, find the host whose clock is wrong, or lower input.max_age";
    CannotBind "cannot-bind" Critical "cannot be bound" =>
        "use an address of this host and a port that the service's user may bind";
    SpoolDirectory "spool-directory" Critical "cannot be used" => "use a directory that the service's user can write to";
    SpoolDisk "spool-disk" Warning "its disk has less free space than input.spool_max" => "lower input.spool_max, or free disk space";
    FewDescriptors "few-descriptors" Warning "the process has a low open-files limit, which leaves few descriptors for HTTP" =>
        "raise LimitNOFILE= in eds.service, or `ulimit -n`";
    SmallBuffer "small-buffer" Warning "the kernel limits the receive buffer to less than input.receive_buffer" =>
        "raise the sysctl net.core.rmem_max, and set it in /etc/sysctl.d; for a systemd-managed socket, raise ReceiveBuffer= in its unit";
    MemoryStore "memory-store" Note "keeps events in this process's memory" =>
        "set store.url to a Redis server, so that restarts do not lose open minutes and other nodes can share the work";
}

//! The table of causes. Each row has the name of a finding, and a remedy for each of its causes.

use super::Severity::{self, Critical, Note, Warning};

/// The remedy that clears a loss finding.
pub const ACKNOWLEDGE: &str =
    "after you have handled the loss, run `eds loss acknowledge` (`eds loss` lists it)";
pub(super) const QUARANTINED: &str = "read the server's message with `eds quarantine list --output NAME` and fix the server; then run `eds quarantine retry --all \
     --output NAME`, or `eds quarantine drop --all --output NAME`. A full quarantine discards counts";
const AS_DOCUMENTED: &str = "change the senders to write lines as in docs/input.md; `eds status` shows the most frequent reason with an example";
pub(super) const RELIEVE: &str = "restore the store or reduce its load; raise input.queue_events and input.queue_bytes, or set input.spool_dir";

macro_rules! append_only {
    () => {
        "run `CONFIG SET appendonly yes`, and set it in redis.conf"
    };
}
pub(super) use append_only;

macro_rules! despite_append_only {
    () => {
        "Redis has an append-only file, so check its log: it was emptied or restored, its host crashed, or a replica without the last \
         writes took over (with replicas, set min-replicas-to-write 1 on the master); raise store.replay_window above the seconds of writes that a crash loses"
    };
}

macro_rules! causes {
    ($($cause:ident $id:literal $severity:ident $what:literal => $remedy:expr $(, $kind:ident => $kind_remedy:expr)*;)*) => {
        /// A cause, in the order in which findings of the same severity are shown.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "the table says what each is")]
        pub enum Cause { $($cause, $($kind,)*)* }

        impl Cause {
            /// All causes.
            pub const ALL: &[Self] = &[$(Self::$cause, $(Self::$kind,)*)*];

            /// Returns the name of the finding, for use by programs.
            #[must_use]
            pub const fn id(self) -> &'static str {
                match self { $(Self::$cause $(| Self::$kind)* => $id,)* }
            }

            /// Returns the severity.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self { $(Self::$cause $(| Self::$kind)* => $severity,)* }
            }

            /// Returns what is wrong.
            #[must_use]
            pub const fn what(self) -> &'static str {
                match self { $(Self::$cause $(| Self::$kind)* => $what,)* }
            }

            /// Returns the remedy.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$cause => $remedy, $(Self::$kind => $kind_remedy,)*)* }
            }
        }
    };
}

causes! {
    RedisDown "redis-down" Critical "is unavailable: the nodes queue events, and no minute is counted" =>
        "start it, or check store.url and the network; the nodes keep up to input.queue_events in memory and more in input.spool_dir, and record them when it is available",
        RedisCredentials => "set store.username and store.password_file to a user of this Redis and its password (`ACL LIST`)",
        RedisServerCertificate => "check the server's certificate, the host in store.url, and store.ca_file",
        RedisClientCertificate => "the server requires a certificate that it trusts: check store.cert_file and store.key_file",
        RedisClientCertificateMissing => "the server closed the TLS connection at once, so it may require a client certificate: check store.cert_file and store.key_file",
        RedisIsTls => "the server closed the connection at once, so it may accept TLS only: use rediss:// in store.url",
        RedisNoTls => "the server accepts connections but does not respond, so it may not support TLS: use redis:// in store.url without TLS",
        RedisNotTls => "check store.url: rediss:// needs a TLS server, and the response is not TLS",
        NotRedis => "check the host and the port in store.url, and use rediss:// if the server requires TLS",
        RedisUnreachable => "check the host and the port in store.url, and the firewalls",
        RedisNoCluster => "this Redis is not a cluster: use redis:// in store.url",
        RedisIsCluster => "this Redis is a cluster: use redis+cluster:// in store.url",
        RedisNoSentinel => "this server is not a sentinel: check the port in store.url, or use redis:// to connect to Redis directly",
        RedisIsSentinel => "this server is a sentinel: use redis+sentinel://host:port/name in store.url",
        RedisMasterName => "set the name at the end of store.url to one of `SENTINEL MASTERS`",
        RedisDatabase => "check the database number at the end of store.url, and `databases` in redis.conf";
    RedisReadOnly "redis-read-only" Critical "rejects writes" => "follow its message; the nodes queue events until then";
    RedisReplica "redis-read-only" Critical "rejects writes: it is a replica" =>
        "set store.url to the master, or to its sentinels (redis+sentinel://…); or promote this server: `REPLICAOF NO ONE`";
    RedisTooFewReplicas "redis-read-only" Critical "rejects writes: it has fewer replicas than min-replicas-to-write" =>
        "start a replica, or allow writes without one: `CONFIG SET min-replicas-to-write 0`. The nodes queue events until then";
    RedisDiskFails "redis-read-only" Critical "rejects writes: it cannot write to its disk" =>
        "check the disk and the log of Redis: it accepts writes after the next successful snapshot (`BGSAVE`) or write to its append-only file";
    RedisClusterDown "redis-read-only" Critical "rejects writes: some slots of the cluster have no master" =>
        "start the masters that are down, or promote their replicas; `redis-cli --cluster check ADDRESS` lists slots without a master, and \
         `redis-cli --cluster fix ADDRESS` assigns them. The nodes queue events until then";
    RedisRights "redis-read-only" Critical "denies the configured user a permission" =>
        "grant the commands and keys of config/redis-acl.conf";
    RedisLoading "redis-read-only" Critical "rejects writes: it is loading its data" =>
        "wait until it has loaded its data (see its log); the nodes queue events until then";
    RedisFull "redis-full" Critical "is out of memory: the nodes queue events" =>
        "raise maxmemory (`CONFIG SET maxmemory BYTES`, and in redis.conf; docs/limits.md has the formula), or reduce users or series";
    RedisUnfit "redis-unfit" Critical "cannot keep events" => "run Redis 7.0 or later, or Valkey",
        RedisEvicts => "run `CONFIG SET maxmemory-policy noeviction`, and set it in redis.conf";
    RedisFills "redis-fills" Warning "uses nearly all of its maxmemory" => "raise maxmemory: when it is full, the nodes can only queue events";
    RedisForgets "redis-forgets" Warning "has no append-only file" => append_only!();
    RedisCannotSave "redis-cannot-save" Warning "could not save its data" =>
        "check the disk and the log of Redis: a restart would lose its data";
    RedisClock "redis-clock" Note "its clock differs from this host's" => "check the clocks of both hosts: `chronyc tracking`, `timedatectl`";

    NodeSilent "node-silent" Critical "does not report" =>
        "check its host: `systemctl status eds`, `journalctl -u eds`. Other nodes take over its minutes; events that only this node receives are lost";
    Stalled "stalled" Critical "is stalled" =>
        "check that its log is read: a full pipe or a stopped terminal blocks threads that log; otherwise restart it, and report the problem with its log";
    NodeCannotRecord "node-cannot-record" Critical "cannot use the store; it queues events" =>
        "follow the message; check the network between this node and Redis",
        MemoryFull => "raise store.memory_max, or use Redis",
        MemoryCrowded => "raise store.partitions, or use Redis";
    NodeSettings "node-settings" Critical "closes no minute and sends nothing; nodes with the cluster-wide settings do" =>
        "follow the message; `eds settings show` on that host prints the differences";
    NodeDrops "node-drops" Critical "lost events that it had received" => ACKNOWLEDGE;
    KernelDrops "kernel-drops" Critical "lost datagrams before it read them" => ACKNOWLEDGE;
    SocketFails "socket-fails" Critical "cannot read a socket; lines sent to it are lost" =>
        "check its log, and restart it, with its .socket unit if systemd holds the socket";
    Forgotten "forgotten" Critical "Redis lost confirmed writes" => ACKNOWLEDGE, ForgottenDespiteAppendOnly => despite_append_only!();
    Unconfirmed "unconfirmed" Critical "Redis lost minutes while they were written to an output" => ACKNOWLEDGE,
        UnconfirmedDespiteAppendOnly => concat!("compare the points of these minutes with the expected counts; ", despite_append_only!());
    SpoolFills "spool-fills" Critical "its spool is nearly full" => "restore the store or reduce its load; raise input.spool_max";
    RejectsLines "rejects-lines" Warning "rejects many lines" => AS_DOCUMENTED;
    QueueFills "queue-fills" Warning "its queue is at least half full" => RELIEVE;
    NodeLags "node-lags" Warning "cannot record all events" =>
        "restore the store or reduce its load; check the network between this node and Redis";
    NodeLoses "node-loses" Warning "saw fewer events than another node" =>
        "check the network and the relays before this node, eds_kernel_drops_total, and /api/v1/coverage";
    Clock "clock" Warning "its clock differs from the store's, by which minutes close" =>
        "check the clocks of its host and of the store's host: `chronyc tracking`, `timedatectl`";
    Late "late" Warning "events arrived after their minute was closed" => ACKNOWLEDGE;
    UnstampedCopies "unstamped-copies" Warning "two nodes receive the same lines without a timestamp, so copies count twice" =>
        "change the senders to write a timestamp into each line, or send to eds relay, which adds one before it copies a line (docs/input.md)";
    StampsCoincide "stamps-coincide" Warning "events with equal series, user and timestamp count as one" =>
        "change the senders to use nanoseconds, or to count up in the last digits of a coarse time (docs/input.md); ignore this if the events are copies";
    Overflow "overflow" Warning "counts events under an overflow series" =>
        "find a tag with too many values (/api/v1/series); or raise input.max_series_per_minute with `eds settings apply`, and restart all nodes";
    Version "version" Warning "runs another version than other nodes" => "finish the upgrade, or roll back: docs/upgrades.md";
    NameTaken "name-taken" Warning "another process uses the same name" => "give each node and relay a unique name (node, EDS_NODE)";
    StampsRounded "stamps-rounded" Note "timestamps are whole milliseconds or seconds: events of a user in a series with equal timestamps count as one" =>
        "change the senders to use nanoseconds, or to count up in the last digits (docs/input.md); if their clock is that coarse on purpose, set input.timestamp_precision";
    RejectsFew "rejects-few" Note "rejects lines" => AS_DOCUMENTED;
    ReportUnreadable "report-unreadable" Note "its report is partly unreadable" => "use the version of eds that this process runs, or check its page at /";

    RelaySilent "relay-silent" Critical "does not report" =>
        "check its host: `systemctl status eds-relay`, `journalctl -u eds-relay`. Until it runs, lines sent to it are lost";
    RelayLoop "relay-loop" Critical "receives lines that it has sent: relays form a loop; it drops these lines" =>
        "use only nodes in relay.to, or relays nearer to them: the relay at that source must not lead back to this one";
    RelayPassthroughLoop "relay-loop" Critical "receives passthrough lines that it has sent: relays form a loop; it drops these lines" =>
        "set passthrough.url of one of these relays to the server that the lines are for";
    RelayNowhere "relay-nowhere" Critical "sent events to no node" => ACKNOWLEDGE;
    RelayPassthroughDrops "relay-passthrough-drops" Critical "lost passthrough lines" => ACKNOWLEDGE;
    RelayNodeDown "relay-node-down" Warning "cannot send to a node" =>
        "start the node, or check its address in relay.to and the network";
    RelayPassthroughDown "relay-passthrough-down" Warning "cannot send passthrough lines" =>
        "start the server, or check passthrough.url and the network; the relay sends queued lines when the server is available";
    RelayRejects "relay-rejects" Warning "rejects lines" =>
        "change their sender to write lines as in docs/input.md; eds_relay_lines_rejected_total has the reasons";
    RelayDiscards "relay-discards" Warning "discards lines that are not events, because passthrough.url is none:" =>
        "set passthrough.url to the server for these lines, or change their sender to send them there";

    NoNode "no-node" Critical "no node reports" =>
        "start the nodes (`systemctl start eds`), and check that their store.url and store.prefix are equal to this configuration's";
    Discarded "discarded" Critical "lost counts that an output refused" => QUARANTINED;
    OutputDown "output-down" Critical "accepts no points; the store keeps the counts" =>
        "start the server, or check output.url and the network; the nodes send unsent counts when the server is available",
        OutputHangsUp => "start the server; if it runs, check output.url: the server closes the connection if it requires https:// or is not InfluxDB",
        OutputOverloaded => "the server responds but accepts nothing: check its log, limits and load, and any proxy; the nodes send unsent counts \
                             when it accepts points",
        OutputRejectsAll => "check the server's limits, the type of its field `value`, output.url, and any proxy",
        OutputNoDatabase => "set output.database",
        OutputNoOrg => "set output.org",
        OutputPath => "check the path in output.url",
        OutputIsTls => "output.url must begin with https://",
        OutputPrecision => "check output.api: the server does not support nanoseconds",
        OutputPassword => "check output.username and output.password_file",
        OutputUserRight => "grant the user of output.username write permission for output.database",
        OutputDatabase => "create the database, or check output.database",
        OutputNoWrite => "check output.url and output.api: the server has no /write",
        OutputToken => "check output.token_file",
        OutputTokenRight => "grant the token in output.token_file write permission for output.bucket",
        OutputBucket => "create the bucket, or check output.bucket",
        OutputOrg => "check output.org",
        OutputNoWrite2 => "check output.url and output.api: the server has no /api/v2/write",
        OutputMoved => "set output.url to the final address: eds does not follow redirects",
        NotInfluxDb => "check output.url and output.api: InfluxDB does not answer a write like this",
        OutputBug => "report this bug: eds made a line that it considers invalid itself",
        OutputCertificate => "check the server's certificate, the host in output.url, and output.ca_file",
        OutputNotTls => "check output.url: https:// needs a TLS server, and the response is not TLS";
    QuarantineFull "quarantine-full" Critical "its quarantine is at least half full" => QUARANTINED;
    Quarantine "quarantine" Warning "has quarantined counts" => QUARANTINED;
    Settings "settings" Warning "differs from the cluster-wide settings in the store" =>
        "use the same settings on every node; to change them on all, run `eds settings apply` with the new configuration, and restart each node with it",
        SettingsFormat => "run a version on every node that reads this format, such as the version that wrote it",
        SettingsDivision => "use the same number on every node; to change the number of partitions, set store.partitions_before and \
                             store.partitions_from with it, and run `eds settings apply`",
        SettingsOutdated => "restart it with the new configuration, which `eds settings show` prints; until then it records no events of these minutes";
    Leftovers "leftovers" Warning "Redis has unsent data of another number of partitions, which no node sends" =>
        "to send it, restore that number with store.partitions_before and `eds settings apply`";
    Unsent "unsent" Warning "lacks a minute that ended long ago" => "see `eds outputs list`, and the logs of the nodes for the reason",
        OutputGone => "configure this output again to send its counts, or drop them: `eds outputs drop NAME`";
    OldMinutes "old-minutes" Note "minutes that ended long ago are not sealed" =>
        "no action during the replay of an archive: recent minutes are sealed first; otherwise find a host with a wrong clock, or lower input.max_age";
    CannotBind "cannot-bind" Critical "cannot be bound" =>
        "use an address of this host, and a port that the service's user may bind";
    SpoolDirectory "spool-directory" Critical "cannot be used" => "use a directory that the service's user may write to";
    SpoolDisk "spool-disk" Warning "its disk has less free space than input.spool_max" => "lower input.spool_max, or free disk space";
    FewDescriptors "few-descriptors" Warning "the process has a low limit of open files, which leaves few for HTTP" =>
        "raise LimitNOFILE= in eds.service, or `ulimit -n`";
    SmallBuffer "small-buffer" Warning "the kernel limits the receive buffer to less than input.receive_buffer" =>
        "raise the sysctl net.core.rmem_max, also in /etc/sysctl.d; for a socket of systemd raise ReceiveBuffer= in its unit";
    MemoryStore "memory-store" Note "keeps events in the memory of this process" =>
        "set store.url to a Redis, so that a restart loses no open minute and other nodes can share the work";
}

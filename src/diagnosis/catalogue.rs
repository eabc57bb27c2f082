//! The table of causes. The causes of one finding are in one row, which has its name and a remedy for each.

use super::Severity::{self, Critical, Note, Warning};

/// How the finding of a loss ends if the record outlives the process.
pub const ACKNOWLEDGE: &str = "`eds loss acknowledge`, once you know of it (`eds loss` lists it)";
/// The remedy for counts that an output refused.
pub(super) const QUARANTINED: &str = "see `eds quarantine list --output NAME`, and have the server fixed; then `eds quarantine retry --all \
     --output NAME`, or `eds quarantine drop --all --output NAME`. Beyond the limit counts are discarded";
const AS_DOCUMENTED: &str = "have the senders write lines as docs/input.md has them; `eds status` has the most frequent reason, with an example";

/// The remedy for a Redis without an append-only file.
macro_rules! append_only {
    () => {
        "run `CONFIG SET appendonly yes`, and write it into redis.conf"
    };
}
pub(super) use append_only;

/// The remedy for a Redis that forgot despite its append-only file.
macro_rules! despite_append_only {
    () => {
        "it has an append-only file, so look at its log: it was emptied or restored, a replica that lacked the last writes took over \
         (give a master with replicas min-replicas-to-write 1), or its host crashed; raise store.replay_window beyond what a crash costs"
    };
}

macro_rules! causes {
    ($($cause:ident $id:literal $severity:ident $what:literal => $remedy:expr $(, $kind:ident => $kind_remedy:expr)*;)*) => {
        /// A cause, in the order in which findings of one severity are shown.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "the table says what each is")]
        pub enum Cause { $($cause, $($kind,)*)* }

        impl Cause {
            /// Every cause.
            pub const ALL: &[Self] = &[$(Self::$cause, $(Self::$kind,)*)*];

            /// Returns the name of the finding, for programs.
            #[must_use]
            pub const fn id(self) -> &'static str {
                match self { $(Self::$cause $(| Self::$kind)* => $id,)* }
            }

            /// Returns the severity.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self { $(Self::$cause $(| Self::$kind)* => $severity,)* }
            }

            /// Returns the trouble.
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
    RedisDown "redis-down" Critical "cannot be used: events wait in the nodes, and nothing is counted" =>
        "start it, or look at store.url and the network; the nodes record what waits when it is back, in memory up to input.queue_events, beyond that from input.spool_dir",
        RedisCredentials => "set store.username and store.password_file to a user of this Redis and its password (`ACL LIST`)",
        RedisServerCertificate => "look at the server's certificate, at the host in store.url and at store.ca_file",
        RedisClientCertificate => "the server wants a certificate that it trusts: look at store.cert_file and store.key_file",
        RedisClientCertificateMissing => "a server that ends a TLS connection at once may want a certificate: look at store.cert_file and store.key_file",
        RedisIsTls => "a server that ends a connection at once may speak TLS only: write rediss:// in store.url",
        RedisNoTls => "a server that is there and says nothing may not speak TLS: write redis:// in store.url for one without",
        RedisNotTls => "look at store.url: this does not answer like a server of rediss://",
        NotRedis => "look at the host and the port in store.url, and write rediss:// where the server speaks TLS",
        RedisUnreachable => "look at the host and the port in store.url, and at firewalls on the way",
        RedisNoCluster => "a Redis that is no cluster has redis:// in store.url",
        RedisIsCluster => "where store.url is redis://, a node of a Redis Cluster wants redis+cluster://",
        RedisNoSentinel => "this is no sentinel: look at the port in store.url, or write redis:// for the server itself",
        RedisIsSentinel => "a sentinel has redis+sentinel://host:port/name in store.url",
        RedisMasterName => "set the name at the end of store.url to one of `SENTINEL MASTERS`",
        RedisDatabase => "look at the number at the end of store.url and at `databases` in redis.conf";
    RedisReadOnly "redis-read-only" Critical "takes no writes" => "do what its message says; events wait in the nodes until then";
    RedisReplica "redis-read-only" Critical "takes no writes: it is a replica" =>
        "name the master in store.url, or the sentinels that know it (redis+sentinel://…); or make this one the master: `REPLICAOF NO ONE`";
    RedisTooFewReplicas "redis-read-only" Critical "takes no writes: it has too few replicas (min-replicas-to-write)" =>
        "bring a replica back; or let it take writes without one: `CONFIG SET min-replicas-to-write 0`. Events wait in the nodes until then";
    RedisDiskFails "redis-read-only" Critical "takes no writes: it cannot write to its disk" =>
        "look at the disk and the log of Redis: it takes writes again once a snapshot (`BGSAVE`) or a write to its append-only file succeeds";
    RedisClusterDown "redis-read-only" Critical "takes no writes: slots of its Cluster are served by no master" =>
        "start the masters that are down, or promote their replicas; `redis-cli --cluster check ADDRESS` names slots that belong to no master, and \
         `redis-cli --cluster fix ADDRESS` gives them to one. Events wait in the nodes until then";
    RedisRights "redis-read-only" Critical "refuses the user of this configuration a right" =>
        "grant the commands and keys of config/redis-acl.conf";
    RedisLoading "redis-read-only" Critical "takes no writes: it is loading its data" =>
        "wait until it has loaded them, which its log shows; events wait in the nodes until then";
    RedisFull "redis-full" Critical "is full: events wait in the nodes" =>
        "raise maxmemory (`CONFIG SET maxmemory BYTES`, and redis.conf; docs/limits.md says how much is needed), or have fewer users or series";
    RedisUnfit "redis-unfit" Critical "cannot keep events" => "run Redis 7.0 or later, or Valkey",
        RedisEvicts => "run `CONFIG SET maxmemory-policy noeviction`, and write it into redis.conf";
    RedisFills "redis-fills" Warning "uses nearly all of its maxmemory" => "raise maxmemory: when it is full events wait in the nodes";
    RedisForgets "redis-forgets" Warning "has no append-only file" => append_only!();
    RedisCannotSave "redis-cannot-save" Warning "could not save its data" =>
        "look at the disk and the log of Redis: its data would not outlive it";
    RedisClock "redis-clock" Note "its clock differs from this host's" => "look at the clocks of both hosts: `chronyc tracking`, `timedatectl`";

    NodeSilent "node-silent" Critical "has been silent" =>
        "look at its host: `systemctl status eds`, `journalctl -u eds`. Other nodes take over its work; what only it receives is lost";
    NodeStalled "node-stalled" Critical "makes no progress" =>
        "see that its log is read: a thread that logs waits for a full pipe or a stopped terminal; else restart it, and keep its log for a report";
    NodeCannotRecord "node-cannot-record" Critical "cannot use the store; events wait in it" =>
        "do what the message says; look at the network between this node and Redis",
        MemoryFull => "raise store.memory_max, or use a Redis",
        MemoryCrowded => "have more partitions (store.partitions), or use a Redis";
    NodeSettings "node-settings" Critical "closes no minute and sends nothing; others do it, if there are any" =>
        "do what the message says; `eds settings show`, on that host, prints what differs";
    NodeDrops "node-drops" Critical "lost events that it had received" => ACKNOWLEDGE;
    KernelDrops "kernel-drops" Critical "lost datagrams before it read them" => ACKNOWLEDGE;
    SocketFails "socket-fails" Critical "a socket cannot be read, and what is sent to it is not counted" =>
        "look at its log, and restart it, and its .socket unit if that holds the socket";
    Forgotten "forgotten" Critical "Redis lost what it had confirmed" => ACKNOWLEDGE, ForgottenDespiteAppendOnly => despite_append_only!();
    Unconfirmed "unconfirmed" Critical "Redis lost minutes while they were written" => ACKNOWLEDGE,
        UnconfirmedDespiteAppendOnly => concat!("compare the points of these minutes with what you expect; ", despite_append_only!());
    SpoolFills "spool-fills" Critical "its spool is nearly full" => "bring the store back or relieve it; raise input.spool_max";
    RejectsLines "rejects-lines" Warning "rejects many lines" => AS_DOCUMENTED;
    QueueFills "queue-fills" Warning "its queue fills" =>
        "bring the store back or relieve it; raise input.queue_events and input.queue_bytes, or set input.spool_dir";
    NodeLags "node-lags" Warning "cannot record all that comes" =>
        "bring the store back or relieve it; look at the network between this node and Redis";
    NodeLoses "node-loses" Warning "saw fewer events than another node" =>
        "look at the network and the relays before it, at eds_kernel_drops_total, and at /api/v1/coverage";
    Clock "clock" Warning "its clock is not that of the store, by which minutes close" =>
        "look at the clocks of its host and of the store's: `chronyc tracking`, `timedatectl`";
    Late "late" Warning "events came after their minute was closed" => ACKNOWLEDGE;
    UnstampedCopies "unstamped-copies" Warning "lines without a timestamp come to two nodes within a second, and copies count twice" =>
        "have the senders write a timestamp into each line, or send to eds relay, which does so before it copies a line (docs/input.md)";
    StampsCoincide "stamps-coincide" Warning "events have the series, user and timestamp of those before them, and count as one with them" =>
        "have the senders stamp in nanoseconds, or count up in the last digits of a coarse time (docs/input.md); where they are copies, nothing is wrong";
    Overflow "overflow" Warning "there are more series than input.max_series_per_minute, and events of the others are counted under an overflow series" =>
        "look for a tag with too many values (/api/v1/series); or raise input.max_series_per_minute, for all nodes by `eds settings apply`, and restart them";
    Version "version" Warning "runs another version than the others" => "finish the upgrade, or go back: docs/upgrades.md";
    NameTaken "name-taken" Warning "another process uses this node's name" => "give each node a name of its own (node, EDS_NODE)";
    StampsRounded "stamps-rounded" Note "timestamps are whole milliseconds or seconds with zeros behind: events of a user in one series with the same one count as one" =>
        "have the senders stamp in nanoseconds, or count up in the last digits (docs/input.md); if they have no finer clock on purpose, set input.timestamp_precision";
    RejectsFew "rejects-few" Note "rejects lines" => AS_DOCUMENTED;
    ReportUnreadable "report-unreadable" Note "its report cannot be read in full" => "ask by its own version of eds, or look at its /metrics";

    RelaySilent "relay-silent" Critical "has been silent" =>
        "look at its host: `systemctl status eds-relay`, `journalctl -u eds-relay`. What is sent to it meanwhile is lost";
    RelayLoop "relay-loop" Critical "lines come back by other relays, which send to each other in a circle; they go no further" =>
        "name only nodes in relay.to, or relays nearer to them: the relay at that source must not lead back to this one";
    RelayRestLoop "relay-loop" Critical "lines of the rest come back to this relay, which drops them" =>
        "name in rest.url of one of these relays the server that the lines are for";
    RelayNowhere "relay-nowhere" Critical "sent events to no node" => ACKNOWLEDGE;
    RelayRestDrops "relay-rest-drops" Critical "lost lines of the rest" => ACKNOWLEDGE;
    RelayKernelDrops "relay-kernel-drops" Critical "lost datagrams before it read them" => ACKNOWLEDGE;
    RelayFails "relay-fails" Critical "cannot read a socket, or makes no progress" => "look at its log, and restart it";
    RelayNodeDown "relay-node-down" Warning "cannot send to a node" =>
        "start the node, or look at its address in relay.to and at the network between";
    RelayRestDown "relay-rest-down" Warning "cannot send the rest" =>
        "start the server, or look at rest.url and the network; what waits is sent when it is back";
    RelayRejects "relay-rejects" Warning "rejects lines" =>
        "have their sender write lines as docs/input.md has them; eds_relay_lines_rejected_total has every reason";
    RelayDiscards "relay-discards" Warning "discards lines that are no events, since rest.url is none:" =>
        "name in rest.url the server that they are for, or have their sender send them there";
    RelayNameTaken "relay-name-taken" Warning "another process uses this relay's name" => "give each relay a name of its own (node, EDS_NODE)";
    RelayReportUnreadable "relay-report-unreadable" Note "its report cannot be read in full" =>
        "ask by its own version of eds, or look at its page at /";

    NoNode "no-node" Critical "no node reports" =>
        "start the nodes (`systemctl start eds`), and look whether their store.url and store.prefix are those of this configuration";
    Discarded "discarded" Critical "lost counts that an output refused" => QUARANTINED;
    OutputDown "output-down" Critical "takes no points; counts wait in the store" =>
        "start the server, or look at output.url and the network; what waits is sent when it is back",
        OutputHangsUp => "start the server; where it is always so look at output.url: a server that wants https://, or is no InfluxDB, ends the connection",
        OutputOverloaded => "the server answers and takes nothing: look at its log, its limits and its load, and at what stands between; what waits is sent \
                             when it takes points again",
        OutputRejectsAll => "look at the server's limits and at the type of its field `value`, at output.url and at what stands between",
        OutputNoDatabase => "set output.database",
        OutputNoOrg => "set output.org",
        OutputPath => "look at the path in output.url",
        OutputIsTls => "output.url must begin with https://",
        OutputPrecision => "look at output.api: the server knows no nanoseconds",
        OutputPassword => "look at output.username and output.password_file",
        OutputUserRight => "grant the user of output.username the right to write to output.database",
        OutputDatabase => "create the database, or look at output.database",
        OutputNoWrite => "look at output.url and output.api: there is no /write there",
        OutputToken => "look at output.token_file",
        OutputTokenRight => "give the token in output.token_file the right to write to output.bucket",
        OutputBucket => "create the bucket, or look at output.bucket",
        OutputOrg => "look at output.org",
        OutputNoWrite2 => "look at output.url and output.api: there is no /api/v2/write there",
        OutputMoved => "set output.url to where the server really is: redirects are not followed",
        NotInfluxDb => "look at output.url and output.api: this is not how InfluxDB answers a write",
        OutputBug => "report this: eds made a line that it takes for wrong itself",
        OutputCertificate => "look at the server's certificate, at the host in output.url and at output.ca_file",
        OutputNotTls => "look at output.url: this does not answer like a server of https://";
    QuarantineFull "quarantine-full" Critical "counts are quarantined, half of what fits or more" => QUARANTINED;
    Quarantine "quarantine" Warning "counts are quarantined" => QUARANTINED;
    Settings "settings" Warning "cannot work with what the nodes keep in the store" =>
        "use the same on every node; to change it for all, run `eds settings apply` with the new configuration, and restart each node with it",
        SettingsFormat => "run a version on every node that reads this format, such as the one that wrote it",
        SettingsDivision => "use the same on every node; to change the number of partitions for all, set store.partitions_before and \
                             store.partitions_from with it, and run `eds settings apply`",
        SettingsOutdated => "restart it with the new configuration, which `eds settings show` prints; until then it records no event of these minutes";
    Leftovers "leftovers" Warning "no node works on what another number of partitions left in Redis" =>
        "it is sent when the number is changed to what it was then, with store.partitions_before and `eds settings apply`";
    Unsent "unsent" Warning "lacks a minute that ended long ago" => "see `eds outputs list`, and the logs of the nodes: they say what keeps it back",
        OutputGone => "configure it again to have that sent, or have it dropped: `eds outputs drop NAME`";
    OldMinutes "old-minutes" Note "minutes that ended long ago wait to be sealed" =>
        "nothing, if an archive is replayed: minutes that have just ended come first; otherwise look for a host whose clock is wrong, or lower input.max_age";
    CannotBind "cannot-bind" Critical "cannot be bound" =>
        "name an address of this host, and a port that the service's user may bind";
    SpoolDirectory "spool-directory" Critical "cannot be used" => "name a directory that the service's user may write to";
    SpoolDisk "spool-disk" Warning "its disk has less room than input.spool_max" => "lower input.spool_max, or give the disk room";
    FewDescriptors "few-descriptors" Warning "the process may open few files, and HTTP gets only what the others leave" =>
        "raise LimitNOFILE= in eds.service, or `ulimit -n`";
    SmallBuffer "small-buffer" Warning "the kernel gives a smaller receive buffer than input.receive_buffer asks for" =>
        "raise the sysctl net.core.rmem_max, and write it to /etc/sysctl.d; of a socket of systemd raise ReceiveBuffer= in its unit";
    MemoryStore "memory-store" Note "what is recorded is in the memory of this process" =>
        "name a Redis in store.url, so that a restart loses no open minute and other nodes can share the work";
}

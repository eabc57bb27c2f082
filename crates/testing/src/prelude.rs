//! The names that most integration tests use.

pub use std::collections::{BTreeMap, BTreeSet};
pub use std::fs;
pub use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
pub use std::os::unix::net::UnixDatagram;
pub use std::path::{Path, PathBuf};
pub use std::process::{Child, Command, ExitStatus, Output, Stdio};
pub use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub use std::sync::{Arc, Mutex, mpsc};
pub use std::thread;
pub use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use loadgen::Plan;
pub use rand::rngs::SmallRng;
pub use rand::{RngExt, SeedableRng};
pub use serde_json::Value;
pub use tempfile::TempDir;

pub use crate::assert_contains;
pub use crate::clock::Clock;
pub use crate::eventually::{SOON, eventually, wait_for, when};
pub use crate::http_proxy::{HttpProxy, Mode, Received};
pub use crate::influxdb::InfluxServer;
pub use crate::load::{MINUTE_NS, SEED_MINUTE_NS, load, seed};
pub use crate::metrics::Metrics;
pub use crate::points::{Expected, Point, Points, compare};
pub use crate::ports::free_port;
pub use crate::process::signal;
pub use crate::prometheus::Prometheus;
pub use crate::read_back;
pub use crate::redis::RedisServer;
pub use crate::redis_cluster::RedisCluster;
pub use crate::redis_proxy::{RedisProxy, Then, When};
pub use crate::redis_sentinel::{NAME, RedisSentinel};
pub use crate::tcp_proxy::{TcpProxy, Traffic};
pub use crate::udp_socket::udp_socket;
pub use crate::victoria_metrics::VictoriaMetrics;

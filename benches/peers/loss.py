#!/usr/bin/env python3
"""Sends events to statsd, collectd, gostatsd, Telegraf, vmagent and eds, each on two hosts, and prints what they publish after
duplicates, a kill and an outage of the database, as a table in Markdown.

Each program gets 100 events (`ev:1|c`) of 10 users (`us:<user>|s`), or for vmagent and eds, the same as lines. All but eds publish
every 3 s. A program that is not installed is left out.

    export GOBIN=$PWD/target/bench/peers
    npm install --prefix $GOBIN statsd@0.9.0
    go install github.com/atlassian/gostatsd/cmd/gostatsd@e5cc67e82525
    go install -tags custom,inputs.statsd,outputs.influxdb_v2 github.com/influxdata/telegraf/cmd/telegraf@b27263146617
    git clone --depth 1 --branch v1.150.0 https://github.com/VictoriaMetrics/VictoriaMetrics target/bench/vm
    go -C target/bench/vm build -o $GOBIN/ ./app/vmagent ./app/victoria-metrics
    python3 benches/peers/loss.py target/release/eds [SECONDS OF THE OUTAGE]
"""

import concurrent.futures
import glob
import gzip
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

EDS = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else sys.exit(__doc__)
EVENTS, USERS, INTERVAL_S, OUTAGE_S = 100, 10, 3, int(sys.argv[2]) if len(sys.argv) > 2 else 11


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Database:
    """Accepts points in line protocol by HTTP and in the text format of graphite by TCP, unless it is down."""

    def __init__(self, _):
        self.port, self.lines, self.lock, self.servers = free_port(), [], threading.Lock(), []
        self.graphite = free_port()
        self.start()

    def start(self):
        database = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.body()
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                database.add(body.decode())
                self.send_response(204)
                self.end_headers()
                self.close_connection = True

            def body(self):
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers["Content-Length"]))
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                return body

            def log_message(self, *_):
                pass

        Handler.protocol_version = "HTTP/1.1"
        web = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=web.serve_forever, daemon=True).start()
        listener = socket.create_server(("127.0.0.1", self.graphite))
        threading.Thread(target=self.accept, args=[listener], daemon=True).start()
        self.servers = [web, listener]

    def accept(self, listener):
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                self.add(b"".join(iter(lambda: client.recv(65536), b"")).decode())

    def stop(self):
        web, listener = self.servers
        web.shutdown()
        web.server_close()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()

    def add(self, text):
        with self.lock:
            # A point that is written again replaces itself, as in InfluxDB.
            self.lines = list(dict.fromkeys(self.lines + text.splitlines()))

    def values(self, pattern):
        with self.lock:
            found = [re.search(pattern, line) for line in self.lines]
        return [round(float(match[1])) for match in found if match]


class VictoriaMetrics:
    """Stores what vmagents write, unless it is down. Of the samples that several write at a time, it keeps the highest."""

    def __init__(self, root):
        self.port, self.root = free_port(), root
        self.start()

    def start(self):
        flags = [f"-httpListenAddr=127.0.0.1:{self.port}", f"-storageDataPath={self.root}/vm", "-dedup.minScrapeInterval=1ms"]
        with open(self.root / "vm.log", "ab") as log:
            self.process = subprocess.Popen(["victoria-metrics", *flags], stdout=log, stderr=log)

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def values(self, pattern):
        url = f"http://127.0.0.1:{self.port}/api/v1/export?match[]={{db=''}}"
        series = [json.loads(line) for line in urllib.request.urlopen(url)]
        return [round(value) for one in series if re.search(pattern, str(one["metric"])) for value in one["values"]]


class Program:
    """A program on one host."""

    # Whether every event is sent to both hosts, which publish the same counts.
    is_pair, has_outage, database, starts_in_s = False, True, Database, 2

    def __init__(self, database, directory, shared):
        self.database, self.directory, self.shared = database, directory, shared
        self.port, self.file = free_port(), directory / "config.toml"
        self.file.write_text(self.config())
        self.run()

    def run(self):
        with open(self.directory / "log", "ab") as log:
            command = [shutil.which(self.executable), *self.arguments()]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.directory)
        time.sleep(self.starts_in_s)

    def end(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        self.process.wait()

    def send(self, numbers=range(EVENTS)):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for number in numbers:
                sender.sendto(self.event(number, f"u{number % USERS}").encode(), ("127.0.0.1", self.port))

    def event(self, _, user):
        return f"ev:1|c\nus:{user}|s"

    def counts(self):
        events, users = (self.database.values(pattern.replace("PORT", str(self.port))) for pattern in self.published)
        return sum(events), users


class Statsd(Program):
    title, executable = "statsd 0.9.0 (npm, `graphite`)", "statsd"
    published = r"^hPORT\.counters\.ev\.count (\S+)", r"^hPORT\.sets\.us\.count (\S+)"

    def config(self):
        return f"""{{ port: {self.port}, address: "127.0.0.1", mgmt_port: {free_port()}, flushInterval: {INTERVAL_S * 1000},
            graphiteHost: "127.0.0.1", graphitePort: {self.database.graphite}, backends: ["./backends/graphite"],
            deleteIdleStats: true, graphite: {{ legacyNamespace: false, globalPrefix: "h{self.port}" }} }}"""

    def arguments(self):
        return [self.file]


class Collectd(Program):
    title, executable, has_outage = "collectd 5.12.0 (Debian 12, `csv`)", "collectd", False

    def config(self):
        return f"""Hostname "h"
            BaseDir "{self.directory}"
            PIDFile "{self.directory}/pid"
            Interval {INTERVAL_S}
            LoadPlugin csv
            LoadPlugin statsd
            <Plugin csv>
              DataDir "{self.directory}/csv"
            </Plugin>
            <Plugin statsd>
              Host "127.0.0.1"
              Port "{self.port}"
              DeleteCounters false
              CounterSum true
            </Plugin>
            """

    def arguments(self):
        return ["-f", "-C", self.file]

    def values(self, kind):
        files = glob.glob(f"{self.directory}/csv/h/statsd/{kind}*")
        lines = [line for file in files for line in open(file).read().splitlines()[1:]]
        return [round(float(line.split(",")[1])) for line in lines if not line.endswith("nan")]

    def counts(self):
        return sum(self.values("count-ev")), self.values("objects-us")


class Gostatsd(Program):
    title, executable = "gostatsd 41.1.5 (`influxdb`)", "gostatsd"
    published = r"^ev,\S*host=hPORT\S* count=([^,]+)", r"^us,\S*host=hPORT\S* count=(\S+)"

    def config(self):
        return f"""metrics-addr = "127.0.0.1:{self.port}"
            flush-interval = "{INTERVAL_S}s"
            default-tags = "host:h{self.port}"
            backends = "influxdb"
            [influxdb]
            api-endpoint = "http://127.0.0.1:{self.database.port}"
            org = "o"
            bucket = "b"
            """

    def arguments(self):
        return ["--config-path", self.file]


class Telegraf(Program):
    title, executable, agent = "Telegraf 1.40.0-b2726314 (`influxdb_v2`)", "telegraf", ""
    published = r"^ev,host=hPORT\S* value=(\d+)", r"^us,host=hPORT\S* value=(\d+)"

    def config(self):
        return f"""[agent]
            interval = "{INTERVAL_S}s"
            flush_interval = "{INTERVAL_S}s"
            hostname = "h{self.port}"
            {self.agent}
            [[inputs.statsd]]
            service_address = "127.0.0.1:{self.port}"
            [[outputs.influxdb_v2]]
            urls = ["http://127.0.0.1:{self.database.port}"]
            token = "t"
            organization = "o"
            bucket = "b"
            """

    def arguments(self):
        return ["--config", self.file]


class TelegrafWithDisk(Telegraf):
    title, agent = 'Telegraf, `buffer_strategy = "disk"`', 'buffer_strategy = "disk"\nbuffer_directory = "buffer"'


class Vmagent(Program):
    title, executable, database = "vmagent 1.150.0 (`-streamAggr.config`)", "vmagent", VictoriaMetrics
    # Counts of the interval in which vmagent starts are not published.
    starts_in_s = 2 + INTERVAL_S
    published = r"ev_value.*'hPORT'", r"us_value.*'hPORT'"

    def config(self):
        return f"""[{{ match: ev_value, interval: {INTERVAL_S}s, outputs: [count_samples] }},
            {{ match: us_value, interval: {INTERVAL_S}s, without: [user], outputs: [count_series] }}]"""

    def arguments(self):
        return [
            f"-httpListenAddr=127.0.0.1:{free_port()}",
            f"-influxListenAddr=127.0.0.1:{self.port}",
            f"-streamAggr.config={self.file}",
            f"-remoteWrite.url=http://127.0.0.1:{self.database.port}/api/v1/write",
            *([] if self.is_pair else [f"-remoteWrite.label=host=h{self.port}"]),
        ]

    def event(self, _, user):
        return f"ev value=1\nus,user={user} value=1"


class VmagentPair(Vmagent):
    title, is_pair = "two vmagents, one series (`-dedup.minScrapeInterval`)", True
    published = "ev_value", "us_value"


class Eds(Program):
    title, executable, is_pair = "`eds`", EDS, True
    published = r"^cumulative_user_event,.* value=(\d+)", r"^unique_user_event,.* value=(\d+)"

    def config(self):
        return f"""node = "n{self.port}"
            [input]
            listen = ["127.0.0.1:{self.port}"]
            [http]
            listen = ""
            [store]
            url = "redis://127.0.0.1:{self.shared['redis']}"
            [flush]
            grace = "2s"
            lease = "3s"
            interval = "200ms"
            [output]
            url = "http://127.0.0.1:{self.database.port}"
            org = "o"
            bucket = "b"
            """

    def arguments(self):
        return ["run", "--config", self.file]

    def event(self, number, user):
        # The events are the same on every host, and in a minute that has ended.
        return f"event_type=ev,product=p value={user} {self.shared['minute'] + number}"


def with_two(program, steps):
    """Starts a program on two hosts, runs the steps, and returns the published counts: events, and users of each host."""
    with tempfile.TemporaryDirectory() as root:
        root = pathlib.Path(root)
        shared = {"redis": free_port(), "minute": (time.time_ns() // 60_000_000_000 - 2) * 60_000_000_000}
        database, hosts, redis = program.database(root), [], None
        try:
            if program is Eds:
                redis = subprocess.Popen(
                    ["redis-server", "--port", str(shared["redis"]), "--save", "", "--dir", str(root)], stdout=subprocess.DEVNULL
                )
                time.sleep(0.5)
            for name in ["one", "two"]:
                (root / name).mkdir()
                hosts.append(program(database, root / name, shared))
            steps(database, hosts)
            time.sleep(2 * INTERVAL_S + 3)
            found = [host.counts() for host in (hosts[:1] if program.is_pair else hosts)]
            return sum(events for events, _ in found), [max(users) for _, users in found if users]
        finally:
            for host in hosts:
                host.end()
            if redis:
                redis.kill()
            database.stop()


def to_both(_, hosts):
    for host in hosts:
        host.send()


def to_both_later(_, hosts):
    hosts[0].send()
    time.sleep(INTERVAL_S)
    hosts[1].send()


def to_one_of_both(_, hosts):
    for first, host in enumerate(hosts):
        host.send(range(first, EVENTS, 2))


def send(hosts):
    for host in hosts if hosts[0].is_pair else hosts[:1]:
        host.send()


def kill(_, hosts):
    send(hosts)
    time.sleep(0.2)
    hosts[0].end()


def outage(database, hosts):
    database.stop()
    send(hosts)
    time.sleep(OUTAGE_S)
    database.start()
    # The pause before the next retry may be as long as the outage.
    time.sleep(OUTAGE_S)


def outage_and_kill(database, hosts):
    database.stop()
    send(hosts)
    time.sleep(OUTAGE_S)
    hosts[0].end()
    database.start()
    hosts[0].run()


def row(program):
    both, users = with_two(program, to_both)
    split, later = (with_two(program, steps)[0] for steps in (to_one_of_both, to_both_later))
    # A kill may come just after an interval has ended, so it is repeated, and the lowest number counts.
    killed = min(with_two(program, kill)[0] for _ in range(3))
    outages = [with_two(program, steps)[0] if program.has_outage else "not tested" for steps in (outage, outage_and_kill)]
    cells = [program.title, split, both, " + ".join(map(str, users)), later, killed, *outages]
    return "| " + " | ".join(map(str, cells)) + " |"


def main():
    peers = os.path.abspath("target/bench/peers")
    os.environ["PATH"] = f"{peers}:{peers}/node_modules/.bin:{os.environ['PATH']}:/usr/sbin"
    programs = [Statsd, Collectd, Gostatsd, Telegraf, TelegrafWithDisk, Vmagent, VmagentPair, Eds]
    programs = [program for program in programs if shutil.which(program.executable)]
    titles = [
        f"{EVENTS} events of {USERS} users",
        "each sent to one of two hosts",
        "each to both",
        "users of these",
        f"to the second {INTERVAL_S} s later",
        "`kill -9` within the interval",
        f"database unreachable for {OUTAGE_S} s",
        "and then `kill -9`",
    ]
    print("| " + " | ".join(titles) + " |\n|" + " --- |" * len(titles))
    with concurrent.futures.ThreadPoolExecutor(len(programs)) as pool:
        for line in pool.map(row, programs):
            print(line, flush=True)


main()

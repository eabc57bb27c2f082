#!/usr/bin/env python3
"""Sends events to statsd, collectd, Telegraf and eds, each on two hosts, and prints what they publish after duplicates, a kill and
an outage of the database, as a table in Markdown.

Each program gets 100 events (`ev:1|c`) of 10 users (`us:<user>|s`), or for eds, the same as lines. statsd, collectd and Telegraf
publish every 3 s. A program that is not installed is left out.

    npm install --prefix target/bench/peers statsd@0.9.0
    python3 benches/peers/loss.py target/release/eds [TELEGRAF]
"""

import glob
import gzip
import http.server
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

EVENTS, USERS, INTERVAL_S, OUTAGE_S = 100, 10, 3, 11


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Database:
    """Accepts points in line protocol by HTTP and in the text format of graphite by TCP, unless it is down."""

    def __init__(self):
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


class Program:
    """A program on one host."""

    def __init__(self, database, directory, shared):
        self.database, self.directory, self.shared = database, directory, shared
        self.port = free_port()
        self.configure()
        self.run()

    def run(self):
        log = open(self.directory / "log", "ab")
        self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, cwd=self.directory)
        time.sleep(1.5)

    def end(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        self.process.wait()

    def send(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for line in self.lines():
                sender.sendto(line.encode(), ("127.0.0.1", self.port))

    def lines(self):
        for number in range(EVENTS):
            yield "ev:1|c"
            yield f"us:u{number % USERS}|s"



class Statsd(Program):
    title, has_outage = "statsd (npm)", True

    def configure(self):
        (self.directory / "config.js").write_text(
            f"""{{ port: {self.port}, address: "127.0.0.1", mgmt_port: {free_port()}, flushInterval: {INTERVAL_S * 1000},
            graphiteHost: "127.0.0.1", graphitePort: {self.database.graphite}, backends: ["./backends/graphite"],
            deleteIdleStats: true, graphite: {{ legacyNamespace: false, globalPrefix: "h{self.port}" }} }}"""
        )

    def command(self):
        return ["node", STATSD, str(self.directory / "config.js")]

    def counts(self):
        events = self.database.values(rf"^h{self.port}\.counters\.ev\.count (\S+)")
        return sum(events), self.database.values(rf"^h{self.port}\.sets\.us\.count (\S+)")


class Collectd(Program):
    title, has_outage = "collectd (csv)", False

    def configure(self):
        (self.directory / "collectd.conf").write_text(
            f"""Hostname "h"
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
        )

    def command(self):
        return [shutil.which("collectd"), "-f", "-C", str(self.directory / "collectd.conf")]

    def values(self, kind):
        files = glob.glob(f"{self.directory}/csv/h/statsd/{kind}*")
        lines = [line for file in files for line in open(file).read().splitlines()[1:]]
        return [round(float(line.split(",")[1])) for line in lines if not line.endswith("nan")]

    def counts(self):
        return sum(self.values("count-ev")), self.values("objects-us")


class Telegraf(Program):
    title, has_outage = "Telegraf (influxdb_v2)", True

    def configure(self):
        (self.directory / "telegraf.conf").write_text(
            f"""[agent]
            interval = "{INTERVAL_S}s"
            flush_interval = "{INTERVAL_S}s"
            hostname = "h{self.port}"
            [[inputs.statsd]]
            service_address = "127.0.0.1:{self.port}"
            [[outputs.influxdb_v2]]
            urls = ["http://127.0.0.1:{self.database.port}"]
            token = "t"
            organization = "o"
            bucket = "b"
            """
        )

    def command(self):
        return [TELEGRAF, "--config", str(self.directory / "telegraf.conf")]

    def counts(self):
        tags = rf"host=h{self.port}\S* value=(\d+)"
        return sum(self.database.values(rf"^ev,{tags}")), self.database.values(rf"^us,{tags}")


class Eds(Program):
    title, has_outage = "eds", True

    def configure(self):
        (self.directory / "eds.toml").write_text(
            f"""node = "n{self.port}"
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
        )

    def command(self):
        return [EDS, "run", "--config", str(self.directory / "eds.toml")]

    def lines(self):
        # The events are the same on every host, and in a minute that has ended.
        minute = self.shared["minute"]
        for number in range(EVENTS):
            yield f"event_type=ev,product=p value=u{number % USERS} {minute + number}"

    def counts(self):
        values = self.database.values
        return sum(values(r"^cumulative_user_event,.* value=(\d+)")), values(r"^unique_user_event,.* value=(\d+)")


def with_two(program, steps):
    """Starts a program on two hosts, runs the steps, and returns the published counts: events, and users of each host."""
    with tempfile.TemporaryDirectory() as root:
        root = pathlib.Path(root)
        shared = {"redis": free_port(), "minute": (time.time_ns() // 60_000_000_000 - 2) * 60_000_000_000}
        database, hosts, redis = Database(), [], None
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
            found = [host.counts() for host in (hosts[:1] if program is Eds else hosts)]
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


def kill(_, hosts):
    # A relay sends every event to both nodes of eds. The other programs have one host for an event.
    for host in hosts if isinstance(hosts[0], Eds) else hosts[:1]:
        host.send()
    time.sleep(0.2)
    hosts[0].end()


def outage(database, hosts):
    database.stop()
    hosts[0].send()
    time.sleep(OUTAGE_S)
    database.start()
    time.sleep(INTERVAL_S)


def outage_and_kill(database, hosts):
    database.stop()
    hosts[0].send()
    time.sleep(OUTAGE_S)
    hosts[0].end()
    database.start()
    hosts[0].run()


def main():
    programs = [
        (os.path.exists(STATSD), Statsd),
        (shutil.which("collectd"), Collectd),
        (TELEGRAF, Telegraf),
        (True, Eds),
    ]
    programs = [program for is_there, program in programs if is_there]
    print(f"| {EVENTS} events | " + " | ".join(program.title for program in programs) + " |")
    print("| --- |" + " --- |" * len(programs))
    for title, steps, shows_users in [
        ("each sent to two hosts", to_both, False),
        (f"the {USERS} users of these events", to_both, True),
        ("`kill -9` within the interval", kill, False),
        (f"database unreachable for {OUTAGE_S} s", outage, False),
        ("database unreachable, and the process is killed", outage_and_kill, False),
    ]:
        cells = []
        for program in programs:
            if steps in (outage, outage_and_kill) and not program.has_outage:
                cells.append("not tested")
                continue
            # A kill may come just after an interval has ended, so it is repeated, and the lowest numbers count.
            events, users = min(with_two(program, steps) for _ in range(3 if steps is kill else 1))
            cells.append(" + ".join(map(str, users)) if shows_users else str(events))
        print(f"| {title} | " + " | ".join(cells) + " |", flush=True)


EDS = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else sys.exit(__doc__)
TELEGRAF = os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else None
STATSD = os.path.abspath("target/bench/peers/node_modules/statsd/stats.js")
os.environ["PATH"] += ":/usr/sbin"
main()

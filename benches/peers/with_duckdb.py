#!/usr/bin/env python3
"""Counts the users of hours and days with eds and with DuckDB, from the same events, and compares all numbers.

eds send sends each event to a node, and to this script, which writes the events to a file for DuckDB. Prints the number of
differences and the cost, and exits with code 1 if a number differs.

    python3 -m venv target/bench/duckdb && target/bench/duckdb/bin/pip install duckdb==2.0.1
    target/bench/duckdb/bin/python benches/peers/with_duckdb.py target/release/eds 2000000
"""

import os
import pathlib
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time

import duckdb

CONFIG = """
[input]
listen = ["127.0.0.1:{port}"]
max_age = "36500days"
[http]
listen = ""
[store]
url = "memory:"
[output]
url = "stdout:"
[[rollup]]
name = "hourly"
every = "1h"
[[rollup]]
name = "products"
every = "1day"
time_zone = "Europe/Berlin"
by = ["product"]
"""
# Each row: suffix, group, start, number of users, number of events. Repeated lines are one event.
QUERIES = [
    """SELECT '_1h', tags, nanos // 3600000000000 * 3600000000000, count(DISTINCT user), count(DISTINCT (user, nanos))
    FROM events GROUP BY ALL""",
    """SELECT '_products', 'product=' || regexp_extract(tags, 'product=([^,]*)', 1),
    epoch_ns(timezone('Europe/Berlin', date_trunc('day', timezone('Europe/Berlin', make_timestamptz(nanos // 1000))))),
    count(DISTINCT user), count(DISTINCT (tags, user, nanos)) FROM events GROUP BY ALL""",
]
# Six hours around midnight in Berlin.
LOAD = ["--minutes", "360", "--start", "2016-12-04T20:00:00Z"]
PATIENCE_S = 300


def receive(receiver, path):
    with open(path, "wb") as file:
        while datagram := receiver.recv(65536):
            file.write(datagram + b"\n")


def cpu_seconds(usage):
    return usage.ru_utime + usage.ru_stime


def with_duckdb(path):
    before, began = cpu_seconds(resource.getrusage(resource.RUSAGE_SELF)), time.monotonic()
    columns = "{'tags': 'VARCHAR', 'user': 'VARCHAR', 'nanos': 'BIGINT'}"
    database = duckdb.connect()
    database.execute(f"CREATE TABLE events AS FROM read_csv('{path}', delim=' ', header=false, columns={columns})")
    windows = {}
    for query in QUERIES:
        for suffix, group, start, users, events in database.execute(query).fetchall():
            windows[f"unique_user_event{suffix},{group} {start}"] = users
            windows[f"cumulative_user_event{suffix},{group} {start}"] = events
    cpu = cpu_seconds(resource.getrusage(resource.RUSAGE_SELF)) - before
    return windows, time.monotonic() - began, cpu


def published(path):
    windows = {}
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n") and "user_event_" in line:
            key, fields, start = line.split()
            windows[f"{key} {start}"] = int(fields.split(",")[0].removeprefix("value="))
    return windows


def main():
    binary, events = sys.argv[1], sys.argv[2]
    directory = tempfile.TemporaryDirectory()
    place = pathlib.Path(directory.name)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (place / "eds.toml").write_text(CONFIG.format(port=port))
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(str(place / "events.sock"))
    thread = threading.Thread(target=receive, args=(receiver, place / "events"), daemon=True)
    thread.start()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EDS_")}
    with open(place / "points", "w") as points, open(place / "log", "w") as log:
        node = subprocess.Popen(
            [binary, "run", "--config", place / "eds.toml"], stdout=points, stderr=log, env=environment
        )
        to = ["--to", f"127.0.0.1:{port}", "--to", f"unix:{place}/events.sock"]
        send = [binary, "send", "--quiet", "--rate", "50000", "--events", events, *LOAD, *to]
        subprocess.run(send, check=True, env=environment)
        # An empty datagram ends the file.
        end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        end.sendto(b"", str(place / "events.sock"))
        thread.join()
        expected, seconds, cpu = with_duckdb(place / "events")
        deadline = time.monotonic() + PATIENCE_S
        while len(published(place / "points")) < len(expected) and time.monotonic() < deadline:
            time.sleep(1)
        node.terminate()
        node.wait()
    found = published(place / "points")
    different = [key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)]
    for key in sorted(different)[:10]:
        print(f"{key}: DuckDB {expected.get(key)}, eds {found.get(key)}")
    size = (place / "events").stat().st_size
    print(f"{events} events, {len(expected)} numbers of windows, {len(different)} differ")
    print(f"DuckDB {duckdb.__version__}: {size / 1e6:.0f} MB of events, {seconds:.1f} s, {cpu:.1f} s of CPU time")
    if different:
        print((place / "log").read_text()[-2000:])
    sys.exit(bool(different))


main()

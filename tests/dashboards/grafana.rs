//! Runs every query of the Grafana dashboards as Grafana would, and checks that it returns data.

use testing::http;
use testing::prelude::*;

use super::{all_of, path, texts, yaml};
use crate::names::Written;
use crate::support::node::Node;
use crate::world::World;

pub(crate) fn dashboards() -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(path("dashboards/grafana")).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|ending| ending == "json") {
            let text = std::fs::read_to_string(&file).unwrap();
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            let dashboard =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            found.insert(name, dashboard);
        }
    }
    assert!(found.len() >= 4, "{:?}", found.keys());
    found
}

/// Returns the type of the data source that a dashboard needs.
fn source(dashboard: &Value) -> &str {
    let all = list(&dashboard["templating"], "list");
    let source = all.iter().find(|variable| variable["type"] == "datasource").unwrap();
    assert_eq!(source["name"], "datasource");
    source["query"].as_str().unwrap()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], |items| &items[..])
}

/// Returns the name and the query of each dashboard variable that has a query.
fn variables(dashboard: &Value) -> Vec<(&str, &str)> {
    let all = list(&dashboard["templating"], "list").iter();
    let asked = all.filter(|variable| variable["type"] == "query");
    asked
        .map(|variable| (variable["name"].as_str().unwrap(), variable["query"].as_str().unwrap()))
        .collect()
}

/// Replaces Grafana's macros and variables with values, and asserts that none is left.
fn filled(query: &str, values: &BTreeMap<String, String>, [from, to]: [u64; 2]) -> String {
    let mut query = query
        .replace("$timeFilter", &format!("time >= {from}ms AND time <= {to}ms"))
        .replace("${__from}", &from.to_string())
        .replace("${__to}", &to.to_string())
        .replace("$__interval", "1s");
    for (name, value) in values {
        query = query.replace(&format!("${name}"), value);
    }
    let is_left = |rest: &str| rest.starts_with(|c: char| c.is_alphabetic() || "_{".contains(c));
    assert!(!query.split('$').skip(1).any(is_left), "{query} has an unknown variable");
    query
}

/// Returns the range of a panel, which may differ from that of its dashboard.
fn range_ms(panel: &Value, world: &World) -> [u64; 2] {
    let [from, to] = world.range_ms;
    let days = panel["timeFrom"].as_str().map(|days| days.strip_suffix('d').unwrap());
    [days.map_or(from, |days| to - days.parse::<u64>().unwrap() * 86_400_000), to]
}

/// Returns all values as a regex alternation, in the way Grafana inserts a variable with multiple values.
fn values_of(world: &World, query: &str, place: usize) -> Vec<String> {
    let values: Vec<_> = world.column(query, place).into_iter().collect();
    assert!(!values.is_empty(), "{query} returns no values");
    values
}

#[test]
fn every_query_of_the_dashboards_succeeds() {
    let world = World::start();
    let written = Written::by(&world);
    let dashboards = dashboards().into_iter();
    for (file, dashboard) in dashboards.filter(|(_, dashboard)| source(dashboard) == "influxdb") {
        // The first variable is a divisor, so try each of its values.
        let (first, rest) =
            variables(&dashboard).split_first().map(|(a, b)| (*a, b.to_vec())).unwrap();
        let is_tag_keys = first.1.starts_with("SHOW TAG KEYS");
        let options = values_of(
            &world,
            &filled(first.1, &BTreeMap::new(), world.range_ms),
            usize::from(!is_tag_keys),
        );
        for option in options {
            let mut values = BTreeMap::from([(first.0.to_owned(), option)]);
            for (name, query) in &rest {
                let found = values_of(&world, &filled(query, &values, world.range_ms), 1);
                values.insert((*name).to_owned(), format!("({})", found.join("|")));
            }
            for panel in list(&dashboard, "panels") {
                for query in texts(&panel["targets"], "query") {
                    let query = filled(query, &values, range_ms(panel, &world));
                    written.assert_knows_influxql(&query);
                    let answer = world.query(&query);
                    let cells = answer.iter().flat_map(|series| list(series, "values"));
                    let has_value = |row: &Value| {
                        row.as_array().unwrap()[1..].iter().any(|cell| !cell.is_null())
                    };
                    let rows = cells.filter(|row| has_value(row)).count();
                    assert!(rows > 0, "{file}, {}: {query} returns no data", panel["title"]);
                }
            }
        }
    }
}

/// A Prometheus server that scrapes a node and a relay every second.
fn scraping(world: &World) -> Prometheus {
    let targets = [&world.node, &world.relay].map(Node::http);
    let config = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [\"{}\"]\nscrape_configs:\n  \
         - {{ job_name: eds, static_configs: [{{ targets: [{:?}, {:?}] }}] }}\n",
        path("dashboards/alerts.yml").display(),
        targets[0].to_string(),
        targets[1].to_string(),
    );
    Prometheus::start(&config, &[])
}

#[test]
fn every_query_for_prometheus_succeeds() {
    let world = World::start();
    let prometheus = scraping(&world);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, prometheus.port()));
    let mut queries = 0;
    for (file, dashboard) in dashboards() {
        for query in texts(&dashboard["panels"], "expr") {
            let query = query
                .replace("$instance", ".*")
                .replace("$__range", "1h")
                .replace("$__rate_interval", "10s");
            eventually(&format!("{file}: {query} returns data"), SOON, || {
                let request = http::get(address, "/api/v1/query").query(&[("query", &query)]);
                let body = http::answer(request).map_err(|error| error.to_string())?.body;
                let answer: Value = serde_json::from_str(&body).map_err(|_| body.clone())?;
                when(!list(&answer["data"], "result").is_empty(), body)
            });
            queries += 1;
        }
    }
    assert!(queries > 25, "{queries}");
}

/// Each dashboard has one data source, which the user selects, and a schema that current Grafana versions read.
#[test]
fn dashboards_have_a_datasource_variable_and_unique_ids() {
    let mut uids = Vec::new();
    for (file, dashboard) in dashboards() {
        assert!(dashboard["schemaVersion"].as_u64() >= Some(39), "{file}");
        uids.push(dashboard["uid"].as_str().unwrap().to_owned());
        let is_influxdb = source(&dashboard) == "influxdb";
        let panels = list(&dashboard, "panels");
        let mut ids: Vec<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
        ids.dedup();
        assert!(ids.len() == panels.len() && !ids.is_empty(), "{file}: {ids:?}");
        for panel in panels {
            let targets = list(panel, "targets");
            assert!(!targets.is_empty(), "{file}: {panel}");
            for target in targets {
                assert_eq!(target["rawQuery"] == true, is_influxdb, "{file}: {target}");
            }
        }
        let sources = all_of(&dashboard, "datasource");
        assert!(sources.len() > panels.len());
        for source in sources {
            assert_eq!(source["uid"], "${datasource}", "{file}");
        }
    }
    let all = uids.len();
    uids.sort();
    uids.dedup();
    assert_eq!(uids.len(), all, "{uids:?}");
}

/// Numbers of users must not be added, because the same users may occur in two minutes or two series.
#[test]
fn users_are_never_summed() {
    let mut panels_of_users = 0;
    for (file, dashboard) in dashboards() {
        for panel in list(&dashboard, "panels") {
            let queries = texts(&panel["targets"], "query").join(" ");
            if !queries.contains("unique_user_event") {
                continue;
            }
            panels_of_users += 1;
            for adds in ["sum(", "mean(", "cumulative_sum(", "integral("] {
                assert!(!queries.to_lowercase().contains(adds), "{file}: {queries}");
            }
            let says = panel["description"].as_str().unwrap();
            assert!(["max", "last"].iter().any(|word| says.contains(word)), "{file}: {says}");
        }
    }
    assert!(panels_of_users > 5);
}

#[test]
fn provisioned_files_are_mounted() {
    let compose = &yaml("docker-compose.yml")[0]["services"];
    let grafana = &compose["grafana"];
    let mounts: Vec<_> =
        list(grafana, "volumes").iter().map(|mount| mount.as_str().unwrap()).collect();
    let mounted = |at: &str| {
        mounts.iter().any(|mount| {
            let mut parts = mount.split(':');
            let (source, target) = (parts.next().unwrap(), parts.next().unwrap());
            let is_there = !source.starts_with("./") || path(source).is_dir();
            at.starts_with(target) && is_there
        })
    };
    let provisioning = "dashboards/grafana/provisioning";
    let source = &yaml(&format!("{provisioning}/datasources/eds.yml"))[0]["datasources"][0];
    assert_eq!(source["type"], "influxdb");
    assert_eq!(
        source["jsonData"]["dbName"],
        compose["influxdb"]["environment"]["DOCKER_INFLUXDB_INIT_BUCKET"]
    );
    let header = source["secureJsonData"]["httpHeaderValue1"].as_str().unwrap();
    let token = header.split("$__file{").nth(1).unwrap().trim_end_matches('}');
    assert!(mounted(token), "{token} is not mounted by {mounts:?}");
    let provider = &yaml(&format!("{provisioning}/dashboards/eds.yml"))[0]["providers"][0];
    let directory = provider["options"]["path"].as_str().unwrap();
    assert!(mounted(directory), "{directory} is not mounted by {mounts:?}");
    let from = grafana["environment"]["GF_PATHS_PROVISIONING"].as_str().unwrap();
    assert_eq!(from, format!("{directory}/provisioning"));
    // The health dashboard is empty without these metrics.
    let nodes = &yaml("docker-compose.yml")[0]["x-node-environment"];
    assert_eq!(nodes["EDS_OUTPUT__SELF_METRICS"], "1m");
}

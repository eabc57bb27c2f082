//! The names that a node and a relay write and report, which dashboards and alerts may use.

use std::collections::BTreeSet;

use crate::world::World;

/// The names of computed columns in `InfluxQL` and Flux.
const COMPUTED: [&str; 3] = ["sum", "max", "last"];

#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) measurements: BTreeSet<String>,
    pub(crate) fields: BTreeSet<String>,
    pub(crate) tags: BTreeSet<String>,
    pub(crate) metrics: BTreeSet<String>,
    pub(crate) labels: BTreeSet<String>,
}

impl Written {
    pub(crate) fn by(world: &World) -> Self {
        let scrapes =
            [&world.node, &world.relay].map(|process| process.get("/metrics").unwrap().body);
        let samples =
            scrapes.iter().flat_map(|text| text.lines()).filter(|line| !line.starts_with('#'));
        let (mut metrics, mut labels) = (BTreeSet::new(), BTreeSet::new());
        for sample in samples {
            metrics.insert(sample.split(['{', ' ']).next().unwrap().to_owned());
            let before = sample.split("=\"").map(|part| part.rsplit(['{', ',']).next().unwrap());
            labels.extend(
                before
                    .filter(|label| label.bytes().all(|b| b.is_ascii_lowercase()))
                    .map(str::to_owned),
            );
        }
        Self {
            measurements: world.column("SHOW MEASUREMENTS", 0),
            fields: world.column("SHOW FIELD KEYS", 0),
            tags: world.column("SHOW TAG KEYS", 0),
            metrics,
            labels,
        }
    }

    #[track_caller]
    pub(crate) fn assert_knows_influxql(&self, query: &str) {
        let quoted: Vec<_> = query.split('"').collect();
        for (place, name) in (0..).zip(&quoted).skip(1).step_by(2) {
            let before = quoted[place - 1].trim_end();
            let is_alias = before.ends_with(" AS") || query.contains(&format!("AS \"{name}\""));
            let known = if before.ends_with("FROM") {
                self.measurements.contains(*name)
            } else if before.ends_with('(') {
                self.fields.contains(*name) || COMPUTED.contains(name)
            } else {
                self.tags.contains(*name)
            };
            assert!(known || is_alias, "eds writes nothing named {name:?}, which {query} uses");
        }
    }
}

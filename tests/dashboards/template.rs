//! Checks that the Flux code in the InfluxDB template uses only measurements, tags and fields that a node writes.

use super::{texts, yaml};
use crate::names::Written;
use crate::world::World;

const FILE: &str = "dashboards/influxdb2.yml";

#[test]
fn the_template_has_dashboard_variables_and_deadman_check() {
    let documents = yaml(FILE);
    for kind in ["Dashboard", "Variable", "CheckDeadman"] {
        let has = documents.iter().any(|document| document["kind"] == kind);
        assert!(has, "no {kind}");
    }
    for document in &documents {
        assert_eq!(document["apiVersion"], "influxdata.com/v2alpha1");
    }
}

fn quoted<'a>(flux: &'a str, behind: &str) -> Vec<&'a str> {
    let rest = flux.split(behind).skip(1);
    rest.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next()).collect()
}

#[test]
fn every_measurement_field_and_tag_of_the_template_is_written() {
    let written = Written::by(&World::start());
    let mut queries = 0;
    for document in yaml(FILE) {
        // Queries of the buckets use names that are defined by InfluxDB.
        let queries_of_points = texts(&document, "query").into_iter();
        for flux in queries_of_points.filter(|flux| !flux.starts_with("buckets()")) {
            queries += 1;
            for (behind, known) in
                [("_measurement ==", &written.measurements), ("_field ==", &written.fields)]
            {
                for name in quoted(flux, behind) {
                    assert!(known.contains(name), "eds does not write {name}: {flux}");
                }
            }
            let columns = flux
                .split("r.")
                .skip(1)
                .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next());
            let lists = flux.split("columns: [").skip(1).filter_map(|rest| rest.split(']').next());
            let listed = lists.flat_map(|list| list.split('"').skip(1).step_by(2));
            for column in columns.chain(listed).filter(|name| !name.starts_with('_')) {
                assert!(
                    written.tags.contains(column),
                    "eds does not write the tag {column}: {flux}"
                );
            }
        }
    }
    assert!(queries > 8, "{queries}");
}

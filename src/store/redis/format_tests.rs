//! Pins the format: these tests fail when scripts or key names change.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::keys::{self, Keys, PartitionKeys, Process, Scope};
use super::{FORMATS, layout, sets, sources};
use crate::event::{Batch, Minute, Partitions};
use crate::store::{OutputName, RecordRequest, Seen};

/// A hash of each part of the format. The hash of a script covers its shared functions and its key names.
const PINNED: [(&str, u64); 24] = [
    ("acknowledge.lua", 0xac80_7266_baf1_29cc),
    ("acknowledge_losses.lua", 0x74df_97c9_d42f_f4f3),
    ("admit.lua", 0x1943_9757_a7d9_3a1f),
    ("announce.lua", 0x9223_2f05_0be0_8c7e),
    ("append.lua", 0x7179_e4ec_3ba9_cb0c),
    ("attest.lua", 0xb1de_78b8_8141_2f5c),
    ("backlog.lua", 0xcc53_dc74_404c_254b),
    ("check_in.lua", 0x8fd7_0c5e_5248_ab34),
    ("claim.lua", 0x756e_ac97_a3ea_6fca),
    ("compact.lua", 0x80b7_d5a6_15fe_8f54),
    ("cut.lua", 0x34a3_93b8_c866_03f2),
    ("discard.lua", 0xea4c_9b5d_b0a4_9e6e),
    ("drop_output.lua", 0x7705_4ddb_31af_02a7),
    ("extend.lua", 0x3910_37fc_7ddf_3044),
    ("lose.lua", 0xc804_d7ba_84a7_f7dc),
    ("page.lua", 0xad64_d725_d9da_2211),
    ("quarantine.lua", 0x347a_dce6_0228_f189),
    ("record.lua", 0x0e38_bbee_9927_89bc),
    ("report.lua", 0xc12b_3f3d_c258_6a79),
    ("reports.lua", 0x7897_55af_12f3_8587),
    ("requeue.lua", 0x8a0d_6063_f619_4602),
    ("seal.lua", 0xe4f0_ecf6_1da7_09e0),
    ("the names of the other keys", 0x8a44_c7ce_3f22_3670),
    ("the transaction that records", 0x6364_17c2_a2a9_d9d6),
];

const EXPLAINED: &str = "
These parts of the format that nodes share in Redis no longer match their hashes in PINNED.

Nodes of the previous version may work alongside this version on the same minutes. Check the change script by script:
does everything that one version writes mean the same to the other, whichever of them runs first? To test this, run
scripts/upgrade-from COMMIT.
- If so, the format is the same: update the hash in PINNED, and explain in the commit why the two versions may be mixed.
- If not, this is a new format: raise the end of FORMATS (and its start, unless this version can work with both formats),
  update the hash in PINNED, and add a line to CHANGELOG.md.
";

/// Returns a script without comments and blank lines.
fn code(script: &str) -> String {
    let lines = script.lines().map(str::trim);
    let code = lines.filter(|line| !line.is_empty() && !line.starts_with("--"));
    code.collect::<Vec<_>>().join("\n")
}

fn process() -> Process {
    Process { node: "n#1".to_owned(), retention: Duration::from_secs(1), counts_max: 1 }
}

/// Returns the key names of a script.
fn names(keys: &[(Scope, &str)]) -> String {
    let partition = PartitionKeys::new("{eds:0}".to_owned());
    let output: OutputName = "backup".parse().unwrap();
    let process = process();
    let place = partition.place(&process).minute(Minute::of_nanos(0)).of(&output);
    let names = keys.iter().filter(|(scope, _)| *scope != Scope::Given);
    names.map(|(scope, name)| place.key(*scope, name)).collect::<Vec<_>>().join(" ")
}

fn transaction() -> Vec<u8> {
    let minute: Minute = "20161204:1118".parse().unwrap();
    let mut batch = Batch::default();
    assert!(batch.push(minute, "a=b", "user", minute.start_nanos()));
    let recordings = [None, Some("c=d")].map(|overflowed_from| RecordRequest {
        minute,
        series: "a=b",
        overflowed_from,
        new_users: Some(vec!["user"]),
        occurrences: &batch.groups()[0].occurrences,
        batch: &batch,
    });
    let keys = Keys::new("eds", &Partitions::new(NonZeroU16::MIN));
    let partition = Partitions::new(NonZeroU16::MIN).of("a=b", minute);
    let process = process();
    let place = keys.partition(partition).place(&process);
    let mut pipeline = sets::pipeline(place, &recordings);
    let seen = Seen { minute, events: 2, renew: true };
    layout::cover(&mut pipeline, place, &process, &[seen]);
    pipeline.get_packed_pipeline()
}

#[test]
fn shared_state_matches_the_format() {
    let scripts = sources().map(|source| {
        let shared = format!("{}\n{}", names(source.keys), code(&source.text));
        (source.file, xxh3_64(shared.as_bytes()))
    });
    let transaction = ("the transaction that records", xxh3_64(&transaction()));
    let keys = Keys::new("eds", &Partitions::new(NonZeroU16::MIN)).settings();
    let of_all = ["nodes", "relays", "losses"].map(|name| keys::of_all("eds", name));
    let keys = [vec![keys], of_all.into()].concat().join(" ");
    let keys = ("the names of the other keys", xxh3_64(keys.as_bytes()));
    let shared: BTreeMap<_, _> = scripts.chain([transaction, keys]).collect();
    assert_eq!(FORMATS, 4..=4, "update the hashes for the new format");
    let pinned = BTreeMap::from(PINNED);
    let changed: Vec<_> =
        shared.iter().filter(|(name, hash)| pinned.get(*name) != Some(hash)).collect();
    assert!(changed.is_empty(), "now: {changed:#x?}{EXPLAINED}");
    assert_eq!(pinned.len(), shared.len(), "PINNED lists something that no longer exists");
}

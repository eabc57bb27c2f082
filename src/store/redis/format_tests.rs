//! Pins of the format: the test fails when scripts or key names change.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::keys::{self, Keys, PartitionKeys, Scope};
use super::{FORMATS, layout, sets, sources};
use crate::event::{Batch, Minute, Partitions};
use crate::store::{OutputName, RecordRequest, Seen};

/// A hash of each part of the format. The hash of a script includes its shared functions and the names of its keys.
const PINNED: [(&str, u64); 24] = [
    ("acknowledge.lua", 0x786c_2fb3_c2b3_c94d),
    ("acknowledge_losses.lua", 0x74df_97c9_d42f_f4f3),
    ("admit.lua", 0x866e_a754_131d_7b64),
    ("announce.lua", 0x9223_2f05_0be0_8c7e),
    ("append.lua", 0x7179_e4ec_3ba9_cb0c),
    ("attest.lua", 0xb1de_78b8_8141_2f5c),
    ("backlog.lua", 0xcc53_dc74_404c_254b),
    ("check_in.lua", 0xb025_2598_6d0a_f119),
    ("claim.lua", 0xf826_5f1a_c791_5e44),
    ("compact.lua", 0x3eac_633e_ae56_87dd),
    ("cut.lua", 0x34a3_93b8_c866_03f2),
    ("discard.lua", 0xb4b9_2d4c_eec4_b4aa),
    ("drop_output.lua", 0x7705_4ddb_31af_02a7),
    ("extend.lua", 0x3910_37fc_7ddf_3044),
    ("lose.lua", 0xc804_d7ba_84a7_f7dc),
    ("page.lua", 0xad64_d725_d9da_2211),
    ("quarantine.lua", 0xe947_73c7_2712_c1fe),
    ("record.lua", 0x0e38_bbee_9927_89bc),
    ("report.lua", 0xc12b_3f3d_c258_6a79),
    ("reports.lua", 0x7897_55af_12f3_8587),
    ("requeue.lua", 0x0b96_aa3d_5200_086d),
    ("seal.lua", 0xb4db_4f9f_ed72_ddfa),
    ("the names of the other keys", 0x8a44_c7ce_3f22_3670),
    ("the transaction that records", 0x6364_17c2_a2a9_d9d6),
];

const EXPLAINED: &str = "
This is part of what nodes of one format share in Redis, and it is not what is written down for that format.

Nodes of the version before may work beside those of this one, on the same minutes. Ask of the change: does what the one
writes mean the same to the other, script by script, whichever of them runs first? scripts/upgrade-from COMMIT tries it.
- If so, it is the same format: write the new hash into PINNED, and say in the commit why the two may mix.
- If not, it is another format: raise the end of FORMATS (and its beginning, unless this version can work with both),
  write the new hash into PINNED, and a line into CHANGELOG.md.
";

/// Without comments and empty lines.
fn code(script: &str) -> String {
    let lines = script.lines().map(str::trim);
    let code = lines.filter(|line| !line.is_empty() && !line.starts_with("--"));
    code.collect::<Vec<_>>().join("\n")
}

/// The names of the keys of a script.
fn names(keys: &[(Scope, &str)]) -> String {
    let partition = PartitionKeys::new("{eds:0}".to_owned());
    let output: OutputName = "backup".parse().unwrap();
    let place = partition.minute(Minute::of_nanos(0)).of(&output);
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
    let keys = keys.partition(partition);
    let mut pipeline = sets::pipeline(keys, &recordings);
    let seen = Seen { minute, events: 2, renew: true };
    layout::cover(&mut pipeline, keys, "n#1", &[seen], Duration::from_secs(1));
    pipeline.get_packed_pipeline()
}

#[test]
fn what_nodes_share_is_that_of_the_format() {
    let scripts = sources().map(|source| {
        let shared = format!("{}\n{}", names(source.keys), code(&source.text));
        (source.file, xxh3_64(shared.as_bytes()))
    });
    let transaction = ("the transaction that records", xxh3_64(&transaction()));
    let keys = Keys::new("eds", &Partitions::new(NonZeroU16::MIN)).settings();
    let keys = [keys, keys::nodes("eds"), keys::relays("eds"), keys::losses("eds")].join(" ");
    let keys = ("the names of the other keys", xxh3_64(keys.as_bytes()));
    let shared: BTreeMap<_, _> = scripts.chain([transaction, keys]).collect();
    assert_eq!(FORMATS, 4..=4, "another format has other hashes");
    let pinned = BTreeMap::from(PINNED);
    let changed: Vec<_> =
        shared.iter().filter(|(name, hash)| pinned.get(*name) != Some(hash)).collect();
    assert!(changed.is_empty(), "now: {changed:#x?}{EXPLAINED}");
    assert_eq!(pinned.len(), shared.len(), "something of PINNED is gone");
}

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
const PINNED: [(&str, u64); 27] = [
    ("acknowledge.lua", 0xa94d_6b8a_bc41_20a9),
    ("acknowledge_losses.lua", 0x74df_97c9_d42f_f4f3),
    ("admit.lua", 0x0652_df01_f9ba_5cc6),
    ("announce.lua", 0xc4af_e3db_c17f_bd4f),
    ("append.lua", 0x7179_e4ec_3ba9_cb0c),
    ("attest.lua", 0x5a0d_325e_8149_7e65),
    ("backlog.lua", 0xcc53_dc74_404c_254b),
    ("check_in.lua", 0x2c1a_abbb_4143_eb6f),
    ("claim.lua", 0xed1d_41ce_9e8d_73de),
    ("commit.lua", 0x218b_b3ec_b13b_7dc7),
    ("compact.lua", 0x51f6_b1ed_8208_9de9),
    ("cut.lua", 0x34a3_93b8_c866_03f2),
    ("discard.lua", 0xea4c_9b5d_b0a4_9e6e),
    ("drop_output.lua", 0x89a3_8f9e_2c89_0413),
    ("extend.lua", 0xd759_ff1d_ce50_285b),
    ("fold.lua", 0xa516_7c81_98be_edca),
    ("lose.lua", 0x7f1a_b481_caef_4820),
    ("page.lua", 0xe642_e2dd_9e9f_9f78),
    ("quarantine.lua", 0x347a_dce6_0228_f189),
    ("record.lua", 0x0e38_bbee_9927_89bc),
    ("report.lua", 0x6b22_da54_310c_3ab5),
    ("reports.lua", 0xa975_bab0_4773_b222),
    ("requeue.lua", 0x6616_d748_1fc4_8807),
    ("seal.lua", 0x5806_c192_510c_8ab5),
    ("settle.lua", 0xc4b5_34a0_a3cb_0074),
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
    assert_eq!(FORMATS, 5..=5, "update the hashes for the new format");
    let pinned = BTreeMap::from(PINNED);
    let changed: Vec<_> =
        shared.iter().filter(|(name, hash)| pinned.get(*name) != Some(hash)).collect();
    assert!(changed.is_empty(), "now: {changed:#x?}{EXPLAINED}");
    assert_eq!(pinned.len(), shared.len(), "PINNED lists something that no longer exists");
}

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
    ("acknowledge.lua", 0xbaee_16e6_5a6d_17ab),
    ("acknowledge_losses.lua", 0x74df_97c9_d42f_f4f3),
    ("admit.lua", 0x7b71_cd1c_8265_e9c1),
    ("announce.lua", 0xe5ae_02d9_b736_c83a),
    ("append.lua", 0x7179_e4ec_3ba9_cb0c),
    ("attest.lua", 0x6211_8e18_2625_b3e5),
    ("backlog.lua", 0xcc53_dc74_404c_254b),
    ("check_in.lua", 0x3fa4_fb71_0915_bc12),
    ("claim.lua", 0xc4fc_0fe0_ec61_5983),
    ("commit.lua", 0x2ab2_6ef8_6c85_dcf8),
    ("compact.lua", 0x131f_3610_b86e_e999),
    ("cut.lua", 0x34a3_93b8_c866_03f2),
    ("discard.lua", 0xea4c_9b5d_b0a4_9e6e),
    ("drop_output.lua", 0x8602_864d_7800_5082),
    ("extend.lua", 0x5f7a_ff1f_70fb_9db9),
    ("fold.lua", 0xa516_7c81_98be_edca),
    ("lose.lua", 0x1ec2_3b82_7aa6_007a),
    ("page.lua", 0xe629_4308_03bd_e098),
    ("quarantine.lua", 0x347a_dce6_0228_f189),
    ("record.lua", 0x0e38_bbee_9927_89bc),
    ("report.lua", 0x1228_e3e8_ffd9_e4c1),
    ("reports.lua", 0x5af3_23a3_4471_8a63),
    ("requeue.lua", 0x6616_d748_1fc4_8807),
    ("seal.lua", 0xae89_7910_f054_d610),
    ("settle.lua", 0xbba7_4985_7683_0449),
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
    Process {
        node: "n#1".to_owned(),
        retention: Duration::from_secs(1),
        listed_minutes: 2,
        counts_max: 1,
    }
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

//! What the format's number stands for, held to it.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU16;
use std::path::Path;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::keys::Keys;
use super::{FORMATS, recording};
use crate::event::{Batch, Minute, Partitions};
use crate::store::{RecordRequest, Seen};

/// What nodes of this format share in Redis, by a hash of each.
const PINNED: [(&str, u64); 25] = [
    ("acknowledge.lua", 0x1934_570e_36ea_2898),
    ("acknowledge_losses.lua", 0x7239_a704_fb02_bbe1),
    ("admit.lua", 0x736a_da34_d599_5b4f),
    ("announce.lua", 0x2390_22d6_7b7b_0e60),
    ("append.lua", 0x7a6b_1ba5_9510_80d2),
    ("attest.lua", 0x449d_c8e3_4af5_26b4),
    ("backlog.lua", 0xcda7_8e3d_cd1b_a4cb),
    ("check_in.lua", 0xce1d_3f20_f1d8_b49d),
    ("claim.lua", 0x787a_3165_9669_ea83),
    ("compact.lua", 0x360a_04dd_b7b8_19a5),
    ("cut.lua", 0x6ed2_32a4_4643_0a8e),
    ("discard.lua", 0x7372_1de5_534d_17c4),
    ("drop_output.lua", 0x1319_033d_3f9e_1c79),
    ("ending.lua", 0x9c59_544d_0cbe_411e),
    ("extend.lua", 0x4ce4_fd46_545c_1d99),
    ("lose.lua", 0x76c0_b096_4503_f2e4),
    ("page.lua", 0x32b9_4423_a82e_cf6d),
    ("quarantine.lua", 0x5f04_420a_cf63_cb44),
    ("record.lua", 0x2b01_2031_916d_c075),
    ("report.lua", 0x434f_f97d_91eb_b8dd),
    ("reports.lua", 0xf675_a93f_8970_c7e5),
    ("requeue.lua", 0x05cf_dc7a_2b01_7fb7),
    ("seal.lua", 0xd2cb_b9b5_f6ee_1bdb),
    ("the names of the keys", 0x691a_99cd_a197_07f8),
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

fn names() -> String {
    let only = Partitions::new(NonZeroU16::MIN);
    let keys = Keys::new("eds", &only);
    let partition = format!("{:?}", keys.partition(only.of("a=b", Minute::MIN)));
    // The names themselves, and not those of the fields that hold them.
    let mut names: Vec<_> = partition.split('"').skip(1).step_by(2).collect();
    let others = [keys.settings(), keys.node("n")];
    names.extend(others.iter().map(String::as_str));
    names.join(" ")
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
    let mut pipeline = recording::pipeline(keys, &recordings);
    let seen = Seen { minute, events: 2, renew: true };
    recording::cover(&mut pipeline, keys, "n#1", &[seen], Duration::from_secs(1));
    pipeline.get_packed_pipeline()
}

#[test]
fn what_nodes_share_is_that_of_the_format() {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/redis");
    let mut shared = BTreeMap::new();
    for entry in fs::read_dir(scripts).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "lua") {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let text = fs::read_to_string(path).unwrap();
            shared.insert(name, xxh3_64(code(&text).as_bytes()));
        }
    }
    shared.insert("the names of the keys".to_owned(), xxh3_64(names().as_bytes()));
    shared.insert("the transaction that records".to_owned(), xxh3_64(&transaction()));
    assert_eq!(FORMATS, 4..=4, "another format has other hashes");
    let pinned: BTreeMap<_, _> = PINNED.map(|(name, hash)| (name.to_owned(), hash)).into();
    let changed: Vec<_> =
        shared.iter().filter(|(name, hash)| pinned.get(*name) != Some(hash)).collect();
    assert!(changed.is_empty(), "now: {changed:#x?}{EXPLAINED}");
    assert_eq!(pinned.len(), shared.len(), "something of PINNED is gone");
}

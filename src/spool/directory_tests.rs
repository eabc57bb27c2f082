//! Tests the segment files: their order, size limit and lock, and what a crash leaves behind.

use tempfile::TempDir;

use super::*;
use crate::event::Minute;

fn open(directory: &TempDir, bytes_max: u64) -> Directory {
    let settings = SpoolSettings { directory: directory.path().join("spool"), bytes_max };
    Directory::open(&settings).unwrap()
}

fn batch(users: std::ops::Range<i64>) -> Batch {
    let mut batch = Batch::default();
    for user in users {
        let name = format!("user{user:010}");
        assert!(batch.push(Minute::of_nanos(user), "a=1", &name, user));
    }
    batch
}

fn never(_: &io::Error) -> bool {
    false
}

fn read(path: &Path) -> Vec<i64> {
    let bytes = fs::read(path).unwrap();
    let mut timestamps = Vec::new();
    segment::read(&bytes, |_, _, timestamp| timestamps.push(timestamp)).unwrap();
    timestamps
}

/// Takes all segments, and returns the timestamps of their events in order.
fn drain(directory: &mut Directory) -> Vec<i64> {
    let mut all = Vec::new();
    while let Some(segment) = directory.take() {
        all.extend(read(&segment.path));
        directory.done(&segment, false).unwrap();
    }
    all
}

#[test]
fn appended_events_are_taken_in_order_and_removed() {
    let home = TempDir::new().unwrap();
    let mut directory = open(&home, 1 << 20);
    assert!(directory.is_empty());
    for from in 0..100 {
        assert_eq!(directory.append(&batch(from * 100..from * 100 + 100), never).kept, 100);
    }
    assert!(!directory.is_empty());
    assert_eq!(drain(&mut directory), (0..10_000).collect::<Vec<_>>());
    assert!(directory.is_empty());
    assert_eq!(directory.bytes(), 0);
}

#[test]
fn the_next_process_takes_earlier_segments_and_appends_new_ones() {
    let home = TempDir::new().unwrap();
    let mut first = open(&home, 1 << 20);
    assert_eq!(first.append(&batch(0..10), never).kept, 10);
    let taken = first.take().unwrap();
    assert_eq!(taken.events, Some(10));
    // The process dies before the first segment has been recorded, and while it is writing the second one.
    assert_eq!(first.append(&batch(10..20), never).kept, 10);
    drop(first);
    let torn = home.path().join("spool").join(format!("{:020}.spool", 2));
    let bytes = fs::read(&torn).unwrap();
    fs::write(&torn, [&bytes, &bytes[segment::MAGIC.len()..bytes.len() - 1]].concat()).unwrap();

    let mut second = open(&home, 1 << 20);
    assert_eq!(second.append(&batch(20..30), never).kept, 10);
    let taken = second.take().unwrap();
    assert_eq!((taken.events, read(&taken.path)), (None, (0..10).collect()));
    assert_eq!(drain(&mut second), (10..30).collect::<Vec<_>>());
}

#[test]
fn the_bound_holds_and_room_comes_back() {
    let home = TempDir::new().unwrap();
    let mut directory = open(&home, 1 << 20);
    let (mut kept, mut full) = (0, 0);
    for from in 0..100 {
        let appended = directory.append(&batch(from * 1000..from * 1000 + 1000), never);
        kept += appended.kept;
        full += appended.full;
    }
    assert_eq!(kept + full, 100_000);
    assert!(full > 0);
    assert!(directory.bytes() <= 1 << 20);
    let on_disk: u64 = fs::read_dir(home.path().join("spool"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert_eq!(directory.bytes(), on_disk);
    let oldest = directory.take().unwrap();
    directory.done(&oldest, false).unwrap();
    assert_eq!(directory.append(&batch(0..1000), never).kept, 1000);
}

#[test]
fn a_second_process_is_kept_out_until_the_first_ends() {
    let home = TempDir::new().unwrap();
    let first = open(&home, 1 << 20);
    let settings = SpoolSettings { directory: home.path().join("spool"), bytes_max: 1 << 20 };
    let refused = Directory::open(&settings).unwrap_err().to_string();
    assert!(refused.contains("(input.spool_dir) is in use by another process"), "{refused}");
    drop(first);
    Directory::open(&settings).unwrap();
}

#[test]
fn only_the_user_may_read_the_directory() {
    use std::os::unix::fs::PermissionsExt;
    let home = TempDir::new().unwrap();
    let mut directory = open(&home, 1 << 20);
    directory.append(&batch(0..10), never);
    let path = directory.take().unwrap().path;
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o077;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0, 0));
}

#[test]
fn an_unwritable_directory_is_named() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    let settings = SpoolSettings { directory: file.join("spool"), bytes_max: 1 << 20 };
    let refused = Directory::open(&settings).unwrap_err().to_string();
    assert!(refused.contains("input.spool_dir"), "{refused}");
    assert!(refused.contains(&*file.to_string_lossy()), "{refused}");
}

#[test]
fn an_unreadable_segment_is_renamed() {
    let home = TempDir::new().unwrap();
    let mut directory = open(&home, 1 << 20);
    directory.append(&batch(0..10), never);
    let damaged = directory.take().unwrap();
    directory.done(&damaged, true).unwrap();
    let path = damaged.path;
    assert!(!path.exists());
    assert!(path.with_extension("damaged").exists());
    drop(directory);
    let mut directory = open(&home, 1 << 20);
    assert!(directory.is_empty());
    directory.append(&batch(10..20), never);
    let next = directory.take().unwrap();
    directory.done(&next, true).unwrap();
    assert_eq!(read(&path.with_extension("damaged")), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn events_written_before_the_disk_failed_are_kept() {
    let home = TempDir::new().unwrap();
    let mut directory = open(&home, 1 << 20);
    assert_eq!(directory.append(&batch(0..10), never).kept, 10);
    // No file can be created in a removed directory.
    let path = directory.take().unwrap().path;
    fs::remove_dir_all(path.parent().unwrap()).unwrap();
    let appended = directory.append(&batch(10..20), never);
    assert_eq!((appended.kept, appended.failed), (0, 10));
    assert!(appended.error.is_some());
}

#[test]
fn an_empty_segment_leaves_no_file() {
    let home = TempDir::new().unwrap();
    let mut directory = open(&home, 1 << 20);
    directory.growing = Some(directory.begin().unwrap());
    directory.close();
    assert!(directory.is_empty());
    assert_eq!(directory.bytes(), 0);
    let files = fs::read_dir(&directory.path).unwrap();
    let names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    assert_eq!(names, [LOCK]);
}

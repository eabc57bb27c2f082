//! Tests the format of a segment file with every kind of damage.

use proptest::prelude::*;

use super::*;
use crate::event::Minute;

fn batch(events: &[(String, String, i64)]) -> Batch {
    let mut batch = Batch::default();
    for (series, user, timestamp) in events {
        assert!(batch.push(Minute::of_nanos(*timestamp), series, user, *timestamp));
    }
    batch
}

fn segment(frames: &[Frame]) -> Vec<u8> {
    let frames = frames.iter().flat_map(|frame| frame.bytes.clone());
    MAGIC.iter().copied().chain(frames).collect()
}

fn read_all(segment: &[u8]) -> (Vec<(String, String, i64)>, Contents) {
    let mut events = Vec::new();
    let contents = read(segment, |series, user, timestamp| {
        events.push((series.to_owned(), user.to_owned(), timestamp));
    });
    (events, contents.unwrap())
}

fn numbered(count: i64) -> Vec<(String, String, i64)> {
    let event = |number| ("a=1".to_owned(), format!("user{number}"), number);
    (0..count).map(event).collect()
}

#[test]
fn written_events_are_read_in_order() {
    let events = numbered(1000);
    let (frames, unwritten) = frames(&batch(&events));
    assert_eq!((frames.len(), unwritten), (1, 0));
    let (read, contents) = read_all(&segment(&frames));
    assert_eq!(read, events);
    assert_eq!(contents.events, 1000);
    assert_eq!((contents.damaged, contents.torn_bytes), (0, 0));
}

#[test]
fn a_large_batch_takes_several_frames() {
    let events = numbered(100_000);
    let (frames, unwritten) = frames(&batch(&events));
    assert!(frames.len() > 2, "{}", frames.len());
    assert_eq!(unwritten, 0);
    assert_eq!(frames.iter().map(|frame| frame.events).sum::<usize>(), 100_000);
    assert_eq!(read_all(&segment(&frames)).0, events);
}

#[test]
fn longest_names_are_kept() {
    let name = "n".repeat(64 * 1024);
    let events: Vec<_> =
        (0..40).map(|number| (format!("a{number}={name}"), format!("{name}{number}"), 0)).collect();
    let (frames, unwritten) = frames(&batch(&events));
    assert_eq!(unwritten, 0);
    assert_eq!(read_all(&segment(&frames)).0, events);
}

#[test]
fn only_the_torn_frame_is_lost() {
    let (first, _) = frames(&batch(&numbered(10)));
    let (second, _) = frames(&batch(&numbered(3)));
    let whole = segment(&[first.clone(), second].concat());
    let kept = segment(&first).len();
    for end in kept..whole.len() {
        let (read, contents) = read_all(&whole[..end]);
        assert_eq!(read.len(), 10);
        assert_eq!(contents.torn_bytes, (end - kept) as u64);
    }
}

#[test]
fn only_the_damaged_frame_is_lost() {
    let (first, _) = frames(&batch(&numbered(10)));
    let (second, _) = frames(&batch(&numbered(3)));
    let mut bytes = segment(&[first.clone(), second].concat());
    bytes[MAGIC.len() + HEADER + 5] ^= 1;
    let (read, contents) = read_all(&bytes);
    assert_eq!((read.len(), contents.damaged, contents.torn_bytes), (3, 1, 0));
}

#[test]
fn a_corrupt_length_is_damage_and_no_torn_tail() {
    let (first, _) = frames(&batch(&numbered(10)));
    let (second, _) = frames(&batch(&numbered(3)));
    let mut bytes = segment(&[first.clone(), second.clone(), first.clone()].concat());
    let second_len = segment(&first).len();
    bytes[second_len + 3] ^= 0x40;
    let (read, contents) = read_all(&bytes);
    assert_eq!((read.len(), contents.damaged), (10, 1));
}

#[test]
fn zeros_and_truncated_headers_are_a_torn_tail() {
    let (frames, _) = frames(&batch(&numbered(10)));
    let whole = segment(&frames);
    for zeros in [1, 11, 12, 5000] {
        let bytes = [&whole[..], &vec![0; zeros]].concat();
        let (read, contents) = read_all(&bytes);
        assert_eq!((read.len(), contents.damaged), (10, 0));
        assert_eq!(contents.torn_bytes, zeros as u64);
    }
    for bytes in [&whole[..0], &whole[..5], &[0; 4096]] {
        let (read, contents) = read_all(bytes);
        assert_eq!((read.len(), contents.damaged), (0, 0));
        assert_eq!(contents.torn_bytes, bytes.len() as u64);
    }
}

#[test]
fn foreign_file_is_not_a_segment() {
    assert_eq!(read(b"eds spool 2\n", |_, _, _| ()), Err(NotASegment));
    assert_eq!(read(b"eds spoon", |_, _, _| ()), Err(NotASegment));
}

proptest! {
    #[test]
    fn any_events_round_trip(
        events in proptest::collection::vec(("\\PC{0,8}", "\\PC{0,8}", any::<i64>()), 0..50)
    ) {
        let (frames, unwritten) = frames(&batch(&events));
        let (mut read, contents) = read_all(&segment(&frames));
        let mut events = events;
        events.sort();
        read.sort();
        prop_assert_eq!(read, events);
        prop_assert_eq!((unwritten, contents.damaged, contents.torn_bytes), (0, 0, 0));
    }

    #[test]
    fn any_bytes_are_accepted(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let with_magic: Vec<u8> = MAGIC.iter().copied().chain(bytes.clone()).collect();
        let _ = read(&bytes, |_, _, _| ());
        let contents = read(&with_magic, |_, _, _| ()).unwrap();
        prop_assert_eq!(contents.events, 0);
    }

    #[test]
    fn no_single_flipped_bit_makes_an_event(place in 0_usize..400, bit in 0_u8..8) {
        let events = numbered(20);
        let (frames, _) = frames(&batch(&events));
        let mut bytes = segment(&frames);
        let place = MAGIC.len() + place % (bytes.len() - MAGIC.len());
        bytes[place] ^= 1 << bit;
        prop_assert!(read_all(&bytes).0.is_empty());
    }
}

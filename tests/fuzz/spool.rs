//! Reads random bytes as a spool segment. Reading must end and must return only batches that were written.

use event_data_service::event::{Batch, Minute};
use event_data_service::spool::segment::{Contents, MAGIC, NotASegment, frames, read};

use crate::spelling::{LINE, spelled};

type Event = (String, String, i64);

fn events(segment: &[u8]) -> Result<(Vec<Event>, Contents), NotASegment> {
    let mut events = Vec::new();
    let contents = read(segment, |series, user, timestamp| {
        events.push((series.to_owned(), user.to_owned(), timestamp));
    })?;
    Ok((events, contents))
}

fn written(input: &[u8]) -> Vec<Event> {
    let event = |(number, byte): (usize, &u8)| {
        let name = |from: usize| {
            let bytes = spelled(&input[from.min(input.len())..], LINE);
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let timestamp = i64::from(*byte).wrapping_mul(i64::MAX / 127);
        (name(number % 4), name(number), timestamp)
    };
    input.iter().take(40).enumerate().map(event).collect()
}

fn segment(events: &[Event]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for chunk in events.chunks(7) {
        let mut batch = Batch::default();
        for (series, user, timestamp) in chunk {
            assert!(batch.push(Minute::of_nanos(*timestamp), series, user, *timestamp));
        }
        let (frames, unwritten) = frames(&batch);
        assert_eq!(unwritten, 0);
        bytes.extend(frames.into_iter().flat_map(|frame| frame.bytes));
    }
    bytes
}

fn check(input: &[u8]) {
    // Read the input alone, and after a valid header, because random bytes never match a checksum.
    let torn = MAGIC.starts_with(input) || input.iter().all(|&byte| byte == 0);
    match events(input) {
        Err(NotASegment) => assert!(!torn && !input.starts_with(MAGIC)),
        Ok((found, _)) if torn => assert_eq!(found, []),
        Ok(_) => assert!(input.starts_with(MAGIC)),
    }
    let mut behind_magic = MAGIC.to_vec();
    behind_magic.extend(input);
    let (found, contents) = events(&behind_magic).unwrap();
    assert_eq!(contents.events, found.len() as u64);

    // Written batches can be read. A truncated or changed frame does not affect other frames.
    let mut all = written(input);
    all.sort();
    let whole = segment(&all);
    let (mut found, contents) = events(&whole).unwrap();
    found.sort();
    assert_eq!(found, all);
    assert_eq!((contents.damaged, contents.torn_bytes), (0, 0));
    let (place, change) = match input {
        [a, b, change, ..] => (usize::from(u16::from_le_bytes([*a, *b])), *change),
        _ => (0, 1),
    };
    let place = MAGIC.len() + place % (whole.len() - MAGIC.len()).max(1);
    let (undamaged, _) = events(&whole[..place.min(whole.len())]).unwrap();
    assert!(undamaged.iter().all(|event| all.contains(event)));
    let mut changed = whole;
    if let Some(byte) = changed.get_mut(place) {
        *byte ^= change;
        let (undamaged, _) = events(&changed).unwrap();
        assert!(undamaged.iter().all(|event| all.contains(event)));
    }
}

#[test]
fn any_bytes_as_a_segment() {
    bolero::check!().with_test_time(crate::RANDOM_INPUTS_FOR).for_each(|input: &[u8]| check(input));
}

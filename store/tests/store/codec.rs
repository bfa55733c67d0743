use events::event::{Actor, Event, Recorded, SCHEMA};
use events::ids::{Digest, Seq};
use events::log::LogError;
use proptest::prelude::*;
use store::codec::{CodecError, decode, encode};
use store::conformance::one_of_each;

use super::Place;

fn records() -> impl Strategy<Value = Recorded> {
    let drafts = one_of_each();
    let text = ".{0,40}";
    let free = (text, any::<u32>(), text).prop_map(|(work, attempt, error)| Event::WorkFailed {
        work,
        attempt,
        error,
    });
    let known = (0..drafts.len()).prop_map(move |i| drafts[i].event.clone());
    let event = prop_oneof![free, known];
    (any::<u64>(), any::<u64>(), any::<Option<u64>>(), any::<[u8; 32]>(), event).prop_map(
        |(seq, at_unix_ms, cause, previous, event)| Recorded {
            seq: Seq(seq),
            at_unix_ms,
            cause: cause.map(Seq),
            actor: Actor::Sampler,
            schema: SCHEMA,
            previous: Digest(previous),
            event,
        },
    )
}

proptest! {
    #[test]
    fn records_survive_their_bytes(record in records()) {
        let bytes = encode(&record).unwrap();
        prop_assert_eq!(decode(&bytes).unwrap(), record);
        prop_assert!(decode(&bytes[..bytes.len() - 1]).is_err());
        prop_assert!(decode(&[bytes.as_slice(), &[0]].concat()).is_err());
    }

    #[test]
    fn any_bytes_are_refused_quietly(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&bytes);
        let _ = decode(&[&SCHEMA.to_le_bytes(), bytes.as_slice()].concat());
    }
}

#[test]
fn a_newer_schema_is_told_before_anything_is_decoded() {
    let newer = (SCHEMA + 1).to_le_bytes();
    assert_eq!(decode(&[&newer[..], b"whatever"].concat()), Err(CodecError::Newer(SCHEMA + 1)));
    assert!(matches!(decode(&[0, 0]), Err(CodecError::Damaged(_))));
    assert!(matches!(decode(&[1]), Err(CodecError::Damaged(_))));
}

#[test]
fn a_log_of_a_newer_program_is_not_called_damaged() {
    let place = Place::filled(64 << 20);
    let path = place.segments().remove(0);
    let mut bytes = std::fs::read(&path).unwrap();
    let length = u32::from_le_bytes(bytes[56..60].try_into().unwrap()) as usize;
    bytes[80..82].copy_from_slice(&(SCHEMA + 1).to_le_bytes());
    let crc = crc32fast::hash(&[&bytes[56..60], &bytes[64..80 + length]].concat());
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let error = place.own().unwrap_err();
    assert!(
        matches!(error, LogError::Newer { seq: Seq(1), found, known: SCHEMA } if found == SCHEMA + 1)
    );
}

//! The reader of this program against bincode's own.
#![allow(clippy::unwrap_used)]

use bincode::config::standard;
use bincode::serde::{decode_from_slice, encode_to_vec};
use events::event::{Recorded, SCHEMA};
use events::ids::{Digest, Seq};

use super::slice;
use crate::conformance::one_of_each;

fn bodies() -> Vec<Vec<u8>> {
    let numbers = [0, 250, 251, 0xffff, 0x1_0000, 0xffff_ffff, 0x1_0000_0000, u64::MAX];
    let drafts = one_of_each().into_iter().zip(numbers.into_iter().cycle());
    let record = |(draft, number): (events::event::Draft, u64)| Recorded {
        seq: Seq(number),
        at_unix_ms: number,
        cause: draft.cause,
        actor: draft.actor,
        schema: SCHEMA,
        previous: Digest::of(&number.to_le_bytes()),
        event: draft.event,
    };
    drafts.map(|pair| encode_to_vec(record(pair), standard()).unwrap()).collect()
}

/// What both read, as bytes, since no NaN equals another; and how much of `body` that was. The limit
/// keeps bincode from asking for what a wrong length claims.
fn both(body: &[u8]) -> [Option<(Vec<u8>, usize)>; 2] {
    let limit = standard().with_limit::<1_000_000>();
    let again =
        |(record, used): (Recorded, usize)| (encode_to_vec(record, standard()).unwrap(), used);
    [slice::decode(body).ok().map(again), decode_from_slice(body, limit).ok().map(again)]
}

#[test]
fn every_event_is_read_as_bincode_reads_it() {
    for body in bodies() {
        let [ours, theirs] = both(&body);
        assert_eq!(ours, theirs);
        assert_eq!(ours, Some((body.clone(), body.len())));
    }
}

#[test]
fn what_bincode_refuses_is_refused_and_nothing_else() {
    let (mut read, mut refused) = (0, 0);
    let mut compare = |body: &[u8], what: &dyn std::fmt::Display| {
        let [ours, theirs] = both(body);
        assert_eq!(ours, theirs, "{what}: {body:?}");
        *if ours.is_some() { &mut read } else { &mut refused } += 1;
    };
    for body in bodies() {
        for at in 0..body.len() {
            compare(&body[..at], &format_args!("cut at {at}"));
            for byte in [0, 1, 2, 250, 251, 252, 253, 254, 255, body[at] ^ 1, body[at] ^ 0x80] {
                let mut changed = body.clone();
                changed[at] = byte;
                compare(&changed, &format_args!("byte {at} as {byte}"));
            }
        }
    }
    assert!(read > 1000 && refused > 1000, "{read} read, {refused} refused");
}

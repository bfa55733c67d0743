//! BLAKE3 of many short texts at once. The library hashes a long text in several lanes of the
//! processor's vectors, but the blocks of a short one only one after the other; here each lane has
//! another text, and takes the next one when it is done. Plain arithmetic on arrays, which the
//! compiler turns into vectors where it may use them; where it may not, the library is faster.

use std::array::from_fn;

use events::ids::Digest;

/// Texts hashed at the same time.
const LANES: usize = 8;
/// Bytes that are mixed at a time.
const BLOCK: usize = 64;
/// Longest text that has no tree above its blocks.
const CHUNK: usize = 1024;

/// One 32-bit word of every lane.
type Word = [u32; LANES];

const IV: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];
const CHUNK_START: u32 = 1;
const CHUNK_END: u32 = 2;
const ROOT: u32 = 8;
/// Which word of the message goes where in each round.
const SCHEDULE: [[usize; 16]; 7] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
    [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8],
    [3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1],
    [10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6],
    [12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4],
    [9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7],
    [11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13],
];

/// The digest of each text.
pub(crate) fn digests(texts: &[&[u8]]) -> Vec<Digest> {
    #[cfg(target_arch = "x86_64")]
    if texts.len() > 1 && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has what the function is compiled for.
        return unsafe { with_avx2(texts) };
    }
    texts.iter().map(|text| Digest::of(text)).collect()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2(texts: &[&[u8]]) -> Vec<Digest> {
    in_lanes(texts)
}

/// What is left of the text in a lane.
#[derive(Clone, Copy)]
struct Lane<'a> {
    /// Which text; none where there are no more.
    text: Option<usize>,
    rest: &'a [u8],
    /// Whether nothing of it was mixed yet.
    whole: bool,
}

#[inline(always)]
fn in_lanes(texts: &[&[u8]]) -> Vec<Digest> {
    let mut done = vec![Digest::default(); texts.len()];
    let mut waiting = texts.iter().enumerate();
    let mut next = || match waiting.by_ref().find(|(_, text)| text.len() <= CHUNK) {
        Some((at, text)) => Lane { text: Some(at), rest: text, whole: true },
        None => Lane { text: None, rest: &[], whole: true },
    };
    let mut lanes: [Lane<'_>; LANES] = from_fn(|_| next());
    let mut chain: [Word; 8] = IV.map(|word| [word; LANES]);
    while lanes.iter().any(|lane| lane.text.is_some()) {
        let (message, length, flags) = blocks(&lanes);
        chain = compress(&chain, &message, length, flags);
        for (at, lane) in lanes.iter_mut().enumerate() {
            if lane.rest.len() > BLOCK {
                (lane.rest, lane.whole) = (&lane.rest[BLOCK..], false);
                continue;
            }
            if let Some(text) = lane.text {
                for (bytes, word) in done[text].0.as_chunks_mut::<4>().0.iter_mut().zip(&chain) {
                    *bytes = word[at].to_le_bytes();
                }
            }
            *lane = next();
            chain.iter_mut().zip(IV).for_each(|(word, first)| word[at] = first);
        }
    }
    let long = texts.iter().enumerate().filter(|(_, text)| text.len() > CHUNK);
    long.for_each(|(at, text)| done[at] = Digest::of(text));
    done
}

/// The next block of every lane, how many bytes of it count, and what it is to its text.
#[inline(always)]
fn blocks(lanes: &[Lane<'_>; LANES]) -> ([Word; 16], Word, Word) {
    let mut message = [[0; LANES]; 16];
    let (mut length, mut flags) = ([0; LANES], [0; LANES]);
    for (at, lane) in lanes.iter().enumerate() {
        let mut last = [0; BLOCK];
        let taken = lane.rest.len().min(BLOCK);
        let block = lane.rest.first_chunk().unwrap_or_else(|| {
            last[..taken].copy_from_slice(lane.rest);
            &last
        });
        for (word, bytes) in message.iter_mut().zip(block.as_chunks::<4>().0) {
            word[at] = u32::from_le_bytes(*bytes);
        }
        length[at] = taken as u32;
        let start = if lane.whole { CHUNK_START } else { 0 };
        let end = if lane.rest.len() <= BLOCK { CHUNK_END | ROOT } else { 0 };
        flags[at] = start | end;
    }
    (message, length, flags)
}

/// One block of every lane.
#[inline(always)]
fn compress(chain: &[Word; 8], message: &[Word; 16], length: Word, flags: Word) -> [Word; 8] {
    let mut v: [Word; 16] = [[0; LANES]; 16];
    v[..8].copy_from_slice(chain);
    (0..4).for_each(|i| v[8 + i] = [IV[i]; LANES]);
    (v[14], v[15]) = (length, flags);
    for s in &SCHEDULE {
        let m = |at: usize| message[s[at]];
        mix(&mut v, [0, 4, 8, 12], m(0), m(1));
        mix(&mut v, [1, 5, 9, 13], m(2), m(3));
        mix(&mut v, [2, 6, 10, 14], m(4), m(5));
        mix(&mut v, [3, 7, 11, 15], m(6), m(7));
        mix(&mut v, [0, 5, 10, 15], m(8), m(9));
        mix(&mut v, [1, 6, 11, 12], m(10), m(11));
        mix(&mut v, [2, 7, 8, 13], m(12), m(13));
        mix(&mut v, [3, 4, 9, 14], m(14), m(15));
    }
    from_fn(|i| xor(v[i], v[i + 8]))
}

#[inline(always)]
fn mix(v: &mut [Word; 16], [a, b, c, d]: [usize; 4], x: Word, y: Word) {
    v[a] = add(add(v[a], v[b]), x);
    v[d] = turn::<16>(xor(v[d], v[a]));
    v[c] = add(v[c], v[d]);
    v[b] = turn::<12>(xor(v[b], v[c]));
    v[a] = add(add(v[a], v[b]), y);
    v[d] = turn::<8>(xor(v[d], v[a]));
    v[c] = add(v[c], v[d]);
    v[b] = turn::<7>(xor(v[b], v[c]));
}

#[inline(always)]
fn add(a: Word, b: Word) -> Word {
    from_fn(|i| a[i].wrapping_add(b[i]))
}

#[inline(always)]
fn xor(a: Word, b: Word) -> Word {
    from_fn(|i| a[i] ^ b[i])
}

#[inline(always)]
fn turn<const BY: u32>(a: Word) -> Word {
    from_fn(|i| a[i].rotate_right(BY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_digest_is_the_librarys_whatever_the_lengths_and_how_many() {
        let bytes: Vec<u8> =
            (0..9_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let lengths = (0..1_100).chain([3_000, 64, 0, 1_024, 1_025, 7, 128, 65, 2_048]);
        let texts: Vec<&[u8]> = lengths.map(|length| &bytes[length % 97..][..length]).collect();
        let right: Vec<Digest> = texts.iter().map(|text| Digest::of(text)).collect();
        assert_eq!(in_lanes(&texts), right);
        assert_eq!(digests(&texts), right);
        for count in 0..40 {
            assert_eq!(digests(&texts[1_090..][..count.min(19)]), right[1_090..][..count.min(19)]);
            assert_eq!(digests(&texts[500..][..count]), right[500..][..count]);
            assert_eq!(in_lanes(&texts[40..][..count]), right[40..][..count]);
        }
    }
}

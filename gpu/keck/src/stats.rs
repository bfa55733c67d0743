//! Comparing two tensors: statistics from which any tolerance can be decided later.

use events::outcome::OutputStats;

use crate::tensors::{Blob, DType};

/// Values that are looked at before the hull is made small again.
const CHUNK: usize = 1 << 12;
/// Values that one thread looks at; more are shared among several. Always the same, so that sums are.
const PART: usize = 1 << 20;
/// Sums that are made side by side.
const LANES: usize = 8;

/// Statistics of output `index` of two blobs of the same shape and dtype.
pub fn compare(reference: &Blob<'_>, candidate: &Blob<'_>, index: usize) -> OutputStats {
    let name = reference.entries.get(index).map(|e| e.dtype.clone()).unwrap_or_default();
    let dtype = DType::named(&name).unwrap_or(DType::U8);
    let (left, right) = (reference.raw(index), candidate.raw(index));
    let size = PART * dtype.width();
    let pairs: Vec<_> = left.chunks(size).zip(right.chunks(size)).collect();
    let mut stats = OutputStats {
        dtype: name.into(),
        elements: (left.len() / dtype.width()) as u64,
        nonfinite_mismatches: 0,
        nonfinite_reference: 0,
        exact_mismatches: 0,
        max_reference: 0.0,
        spread_reference: spread(left, dtype),
        hull: Vec::new(),
    };
    for part in in_parts(&pairs, |pair| match dtype {
        // By far the most frequent; a choice for each value would take longer than the comparing.
        DType::F32 => Part::of(*pair, 4, false, single),
        _ => Part::of(*pair, dtype.width(), dtype.is_exact(), |b| dtype.value(b)),
    }) {
        stats.nonfinite_mismatches += part.nonfinite_mismatches;
        stats.nonfinite_reference += part.nonfinite_reference;
        stats.exact_mismatches += part.exact_mismatches;
        stats.max_reference = stats.max_reference.max(part.max_reference);
        stats.hull.extend(part.hull);
    }
    stats.hull = hull(std::mem::take(&mut stats.hull));
    stats
}

/// What `act` makes of each part, in their order, by as many threads as there are processors.
fn in_parts<P: Sync, T: Send>(parts: &[P], act: impl Fn(&P) -> T + Sync) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(parts.len());
    if threads <= 1 {
        return parts.iter().map(act).collect();
    }
    let share = parts.len().div_ceil(threads);
    std::thread::scope(|scope| {
        let act = &act;
        let work = |some| scope.spawn(move || <[P]>::iter(some).map(act).collect::<Vec<T>>());
        let running: Vec<_> = parts.chunks(share).map(work).collect();
        let ended = running.into_iter().map(|thread| thread.join());
        ended
            .flat_map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn single(bytes: &[u8]) -> f64 {
    f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// Statistics of a part of an output.
#[derive(Default)]
struct Part {
    nonfinite_mismatches: u64,
    nonfinite_reference: u64,
    exact_mismatches: u64,
    max_reference: f64,
    hull: Vec<(f64, f64)>,
}

impl Part {
    fn of(
        (left, right): (&[u8], &[u8]),
        width: usize,
        exact: bool,
        value: impl Fn(&[u8]) -> f64,
    ) -> Self {
        let mut part = Self::default();
        let mut points = Vec::with_capacity(CHUNK);
        // Of the points so far; nearly all others lie below it and are not kept.
        let mut known = Corners::of(Vec::new());
        for (left, right) in left.chunks(CHUNK * width).zip(right.chunks(CHUNK * width)) {
            for expected in left.chunks_exact(width) {
                let size = value(expected).abs();
                let finite = size < f64::INFINITY;
                part.nonfinite_reference += u64::from(!finite);
                part.max_reference =
                    if finite && size > part.max_reference { size } else { part.max_reference };
            }
            if left == right {
                continue;
            }
            for (expected, found) in left.chunks_exact(width).zip(right.chunks_exact(width)) {
                if expected == found {
                    continue;
                }
                part.exact_mismatches += u64::from(exact);
                let (a, b) = (value(expected), value(found));
                let point = (a.abs(), (a - b).abs());
                if !(a.is_finite() && b.is_finite()) {
                    part.nonfinite_mismatches += u64::from(!same_nonfinite(a, b));
                } else if a != b && !known.dominate(point) {
                    points.push(point);
                }
            }
            // At most twice as many as are looked at in between.
            if points.len() >= CHUNK {
                points.append(&mut known.corners);
                known = Corners::of(hull(std::mem::take(&mut points)));
            }
        }
        points.append(&mut known.corners);
        part.hull = hull(points);
        part
    }
}

/// Values of a tensor that are not finite.
pub fn nonfinite(blob: &Blob<'_>, index: usize) -> u64 {
    let name = blob.entries.get(index).map(|e| e.dtype.as_str()).unwrap_or_default();
    let dtype = DType::named(name).unwrap_or(DType::U8);
    let width = dtype.width();
    let parts: Vec<_> = blob.raw(index).chunks(PART * width).collect();
    let odd = in_parts(&parts, |part| {
        let values = part.chunks_exact(width);
        match dtype {
            DType::F32 => values.filter(|b| !single(b).is_finite()).count(),
            _ => values.filter(|b| !dtype.value(b).is_finite()).count(),
        }
    });
    odd.into_iter().sum::<usize>() as u64
}

/// Both NaN, or the same infinity.
fn same_nonfinite(a: f64, b: f64) -> bool {
    a.is_nan() && b.is_nan() || a == b
}

/// Largest distance of a finite value from the mean of the finite values.
pub fn spread(bytes: &[u8], dtype: DType) -> f64 {
    match dtype {
        DType::F32 => spread_of(bytes, 4, single),
        _ => spread_of(bytes, dtype.width(), |b| dtype.value(b)),
    }
}

fn spread_of(bytes: &[u8], width: usize, value: impl Fn(&[u8]) -> f64 + Sync) -> f64 {
    let parts: Vec<_> = bytes.chunks(PART * width).collect();
    let of_all = |a: (f64, u64, f64, f64), b: (f64, u64, f64, f64)| {
        (a.0 + b.0, a.1 + b.1, a.2.min(b.2), a.3.max(b.3))
    };
    let finite = |part: &&[u8]| {
        // Several sums side by side: one would wait for itself at each step.
        let mut sums = [(0.0, 0u64, f64::INFINITY, f64::NEG_INFINITY); LANES];
        for some in part.chunks(LANES * width) {
            for (bytes, (sum, count, low, high)) in some.chunks_exact(width).zip(&mut sums) {
                let v = value(bytes);
                let finite = v.is_finite();
                *sum += if finite { v } else { 0.0 };
                *count += u64::from(finite);
                *low = if finite && v < *low { v } else { *low };
                *high = if finite && v > *high { v } else { *high };
            }
        }
        sums.into_iter().reduce(of_all).unwrap_or_default()
    };
    match in_parts(&parts, finite).into_iter().reduce(of_all) {
        Some((sum, count, low, high)) if count > 0 => {
            let mean = sum / count as f64;
            (high - mean).max(mean - low)
        }
        _ => 0.0,
    }
}

/// Corners of a hull, to be asked for many points.
struct Corners {
    corners: Vec<(f64, f64)>,
    /// By a reference's exponent, the error up to which each point is dominated.
    limits: Vec<f64>,
}

impl Corners {
    fn of(corners: Vec<(f64, f64)>) -> Self {
        let mut limits = vec![-1.0; 1 << 11];
        let mut next = 0;
        for (exponent, limit) in limits.iter_mut().enumerate() {
            let least = f64::from_bits((exponent as u64) << 52);
            let below = corners[next..].iter().take_while(|corner| corner.0 <= least).count();
            next += below;
            *limit = if next > 0 { corners[next - 1].1 } else { -1.0 };
        }
        Self { corners, limits }
    }

    /// Whether a corner has no greater reference and no smaller error: no tolerance lets it pass that does
    /// not let the point pass.
    fn dominate(&self, point: (f64, f64)) -> bool {
        let exponent = (point.0.to_bits() >> 52) as usize;
        if self.limits.get(exponent).is_some_and(|limit| point.1 <= *limit) {
            return true;
        }
        let before = self.corners.partition_point(|corner| corner.0 <= point.0);
        before > 0 && self.corners[before - 1].1 >= point.1
    }
}

/// Corners of the upper left hull of `(|reference|, |error|)`: for every slope >= 0 the point
/// that exceeds a line of this slope the most is among them.
fn hull(mut points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    points.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
    let mut corners: Vec<(f64, f64)> = Vec::new();
    for point in points {
        if corners.last().is_some_and(|last| last.1 >= point.1) {
            continue;
        }
        while let [.., a, b] = corners[..] {
            if (b.0 - a.0) * (point.1 - a.1) >= (b.1 - a.1) * (point.0 - a.0) {
                corners.pop();
            } else {
                break;
            }
        }
        corners.push(point);
    }
    corners
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hull_decides_like_all_points(
            raw in prop::collection::vec((0.0f64..100.0, 0.0f64..10.0), 1..200),
            atol in 0.0f64..5.0,
            rtol in 0.0f64..1.0,
        ) {
            let violates = |points: &[(f64, f64)]| points.iter().any(|p| p.1 > atol + rtol * p.0);
            let corners = hull(raw.clone());
            prop_assert_eq!(violates(&raw), violates(&corners));
            prop_assert!(corners.iter().all(|c| raw.contains(c)));
        }
    }

    proptest! {
        #[test]
        fn points_that_are_not_kept_do_not_matter(
            raw in prop::collection::vec((0.0f64..100.0, 0.0f64..10.0), 2..200),
            split in 1usize..100,
        ) {
            let (first, rest) = raw.split_at(split.min(raw.len() - 1));
            let known = Corners::of(hull(first.to_vec()));
            let kept = rest.iter().filter(|p| !known.dominate(**p)).chain(&known.corners).copied();
            prop_assert_eq!(hull(kept.collect()), hull(raw.clone()));
        }
    }

    #[test]
    #[ignore = "a figure, not a check"]
    fn how_fast() {
        let count = 1 << 24;
        let values = |shift: u32| -> Vec<u8> {
            (0..count as u32)
                .map(|i| {
                    f32::from_bits(0x3f00_0000 + i.wrapping_mul(2_654_435_761) % 8_388_608 + shift)
                })
                .flat_map(f32::to_le_bytes)
                .collect()
        };
        let blob = |data: &[u8]| {
            let header = format!(
                r#"{{"tree":["list",[["tensor",0]]],"tensors":[{{"dtype":"float32","shape":[{count}],"strides":[1],"device":"cpu","offset":0,"bytes":{}}}]}}"#,
                data.len()
            );
            let mut all = (header.len() as u64).to_le_bytes().to_vec();
            all.extend(header.as_bytes());
            all.extend(data);
            all
        };
        let (a, b) = (blob(&values(0)), blob(&values(3)));
        let start = std::time::Instant::now();
        let found = compare(&Blob::read(&a).unwrap(), &Blob::read(&b).unwrap(), 0);
        println!("{:?} for {count}: {} corners", start.elapsed(), found.hull.len());
    }

    #[test]
    fn parts_make_the_whole() {
        let bytes: Vec<u8> = (0..5u32).flat_map(|i| (i as f32).to_le_bytes()).collect();
        assert_eq!(spread(&bytes, DType::F32), 2.0);
        let parts: Vec<usize> = (0..1000).collect();
        assert_eq!(in_parts(&parts, |p| p + 1), (1..1001).collect::<Vec<_>>());
        assert_eq!(spread(&[], DType::F32), 0.0);
    }

    #[test]
    fn an_error_in_any_part_is_seen() {
        let mut data = vec![0u8; 4 * (2 * PART + 7)];
        let blob = |data: &[u8]| {
            let count = data.len() / 4;
            let header = format!(
                r#"{{"tree":0,"tensors":[{{"dtype":"float32","shape":[{count}],"strides":[1],"device":"cpu","offset":0,"bytes":{}}}]}}"#,
                data.len()
            );
            let mut all = (header.len() as u64).to_le_bytes().to_vec();
            all.extend(header.as_bytes());
            all.extend(data);
            all
        };
        let right = blob(&data);
        let last = data.len() - 4;
        data[last..].copy_from_slice(&3f32.to_le_bytes());
        data[4 * PART..4 * PART + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        let wrong = blob(&data);
        let stats = compare(&Blob::read(&right).unwrap(), &Blob::read(&wrong).unwrap(), 0);
        assert_eq!((stats.elements, stats.nonfinite_mismatches), (2 * PART as u64 + 7, 1));
        assert_eq!(stats.hull, vec![(0.0, 3.0)]);
    }

    #[test]
    fn equal_infinities_match() {
        assert!(same_nonfinite(f64::INFINITY, f64::INFINITY));
        assert!(same_nonfinite(f64::NAN, f64::NAN));
        assert!(!same_nonfinite(f64::INFINITY, f64::NEG_INFINITY));
        assert!(!same_nonfinite(f64::NAN, 1.0));
    }
}

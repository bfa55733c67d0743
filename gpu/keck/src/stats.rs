//! Comparing two tensors: statistics from which any tolerance can be decided later.

use events::outcome::OutputStats;

use crate::tensors::{Blob, DType};

/// Values that are looked at before the hull is made small again.
const CHUNK: usize = 1 << 16;

/// Statistics of output `index` of two blobs of the same shape and dtype.
pub fn compare(reference: &Blob<'_>, candidate: &Blob<'_>, index: usize) -> OutputStats {
    let name = reference.entries.get(index).map(|e| e.dtype.clone()).unwrap_or_default();
    let dtype = DType::named(&name).unwrap_or(DType::U8);
    let (left, right) = (reference.raw(index), candidate.raw(index));
    let mut stats = OutputStats {
        dtype: name,
        elements: (left.len() / dtype.width()) as u64,
        nonfinite_mismatches: 0,
        nonfinite_reference: 0,
        exact_mismatches: 0,
        max_reference: 0.0,
        spread_reference: spread(left, dtype),
        hull: Vec::new(),
    };
    let mut points = Vec::with_capacity(CHUNK);
    let pairs = left.chunks_exact(dtype.width()).zip(right.chunks_exact(dtype.width()));
    for (expected, found) in pairs {
        if expected == found {
            // The same bits: only the reference's own figures change.
            note_reference(&mut stats, dtype.value(expected));
            continue;
        }
        stats.exact_mismatches += u64::from(dtype.is_exact());
        let (a, b) = (dtype.value(expected), dtype.value(found));
        note_reference(&mut stats, a);
        if !a.is_finite() || !b.is_finite() {
            stats.nonfinite_mismatches += u64::from(!same_nonfinite(a, b));
        } else if a != b {
            points.push((a.abs(), (a - b).abs()));
        }
        if points.len() >= CHUNK {
            points = hull(points);
        }
    }
    stats.hull = hull(points);
    stats
}

fn note_reference(stats: &mut OutputStats, value: f64) {
    if value.is_finite() {
        stats.max_reference = stats.max_reference.max(value.abs());
    } else {
        stats.nonfinite_reference += 1;
    }
}

/// Both NaN, or the same infinity.
fn same_nonfinite(a: f64, b: f64) -> bool {
    a.is_nan() && b.is_nan() || a == b
}

/// Largest distance of a finite value from the mean of the finite values.
pub fn spread(bytes: &[u8], dtype: DType) -> f64 {
    let finite =
        || bytes.chunks_exact(dtype.width()).map(|b| dtype.value(b)).filter(|v| v.is_finite());
    let (sum, count) = finite().fold((0.0, 0u64), |(sum, count), v| (sum + v, count + 1));
    if count == 0 {
        return 0.0;
    }
    let mean = sum / count as f64;
    finite().map(|v| (v - mean).abs()).fold(0.0, f64::max)
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

    #[test]
    fn equal_infinities_match() {
        assert!(same_nonfinite(f64::INFINITY, f64::INFINITY));
        assert!(same_nonfinite(f64::NAN, f64::NAN));
        assert!(!same_nonfinite(f64::INFINITY, f64::NEG_INFINITY));
        assert!(!same_nonfinite(f64::NAN, 1.0));
    }
}

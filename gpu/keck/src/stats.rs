//! Comparing two tensors: statistics from which any tolerance can be decided later.

use events::outcome::OutputStats;

use crate::tensors::{Blob, DType};

/// Values that are looked at before the hull is made small again.
const CHUNK: usize = 1 << 12;

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
    match dtype {
        // By far the most frequent; a choice for each value would take longer than the comparing.
        DType::F32 => fill(&mut stats, (left, right), 4, false, |b| {
            f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        }),
        _ => fill(&mut stats, (left, right), dtype.width(), dtype.is_exact(), |b| dtype.value(b)),
    }
    stats
}

fn fill(
    stats: &mut OutputStats,
    (left, right): (&[u8], &[u8]),
    width: usize,
    exact: bool,
    value: impl Fn(&[u8]) -> f64,
) {
    let mut points = Vec::with_capacity(CHUNK);
    // Of the points so far; nearly all others lie below it and are not kept.
    let mut known: Vec<(f64, f64)> = Vec::new();
    for (expected, found) in left.chunks_exact(width).zip(right.chunks_exact(width)) {
        let a = value(expected);
        note_reference(stats, a);
        if expected == found {
            continue;
        }
        stats.exact_mismatches += u64::from(exact);
        let b = value(found);
        if !a.is_finite() || !b.is_finite() {
            stats.nonfinite_mismatches += u64::from(!same_nonfinite(a, b));
        } else if a != b {
            let point = (a.abs(), (a - b).abs());
            if !dominated(&known, point) {
                points.push(point);
            }
        }
        if points.len() >= CHUNK {
            points.append(&mut known);
            known = hull(std::mem::take(&mut points));
        }
    }
    points.append(&mut known);
    stats.hull = hull(points);
}

/// Values of a tensor that are not finite.
pub fn nonfinite(blob: &Blob<'_>, index: usize) -> u64 {
    let name = blob.entries.get(index).map(|e| e.dtype.as_str()).unwrap_or_default();
    let dtype = DType::named(name).unwrap_or(DType::U8);
    let values = blob.raw(index).chunks_exact(dtype.width());
    let odd = match dtype {
        DType::F32 => {
            values.filter(|b| !f32::from_le_bytes([b[0], b[1], b[2], b[3]]).is_finite()).count()
        }
        _ => values.filter(|b| !dtype.value(b).is_finite()).count(),
    };
    odd as u64
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
    match dtype {
        DType::F32 => spread_of(
            bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
        ),
        _ => spread_of(bytes.chunks_exact(dtype.width()).map(|b| dtype.value(b))),
    }
}

fn spread_of(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let finite = || values.clone().filter(|v| v.is_finite());
    let (sum, count) = finite().fold((0.0, 0u64), |(sum, count), v| (sum + v, count + 1));
    if count == 0 {
        return 0.0;
    }
    let mean = sum / count as f64;
    finite().map(|v| (v - mean).abs()).fold(0.0, f64::max)
}

/// Whether a corner has a smaller reference and no smaller error: no tolerance lets it pass that does
/// not let the point pass.
fn dominated(corners: &[(f64, f64)], point: (f64, f64)) -> bool {
    let before = corners.partition_point(|corner| corner.0 <= point.0);
    before > 0 && corners[before - 1].1 >= point.1
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
            let known = hull(first.to_vec());
            let kept = rest.iter().filter(|p| !dominated(&known, **p)).chain(&known).copied();
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
    fn equal_infinities_match() {
        assert!(same_nonfinite(f64::INFINITY, f64::INFINITY));
        assert!(same_nonfinite(f64::NAN, f64::NAN));
        assert!(!same_nonfinite(f64::INFINITY, f64::NEG_INFINITY));
        assert!(!same_nonfinite(f64::NAN, 1.0));
    }
}

//! Means of paired differences with Student's interval.

use serde::Serialize;

/// Quantiles of Student's t for a two-sided 95 % interval, by degrees of freedom from 1.
const T95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// A figure in two runs, paired by step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Its mean in the first and in the second.
    pub means: (f64, f64),
    /// Pairs.
    pub pairs: u64,
    /// Mean of second minus first.
    pub mean: f64,
    /// Student's 95 % interval of that mean, as if steps were independent; none of one pair.
    pub interval: Option<(f64, f64)>,
}

impl Difference {
    /// Of pairs (first, second); none of none.
    pub fn of(pairs: &[(f64, f64)]) -> Option<Self> {
        if pairs.is_empty() {
            return None;
        }
        let count = pairs.len() as f64;
        let mean_of = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / count;
        let mean = mean_of(|(a, b)| b - a);
        let interval = (pairs.len() > 1).then(|| {
            let squares: f64 = pairs.iter().map(|(a, b)| (b - a - mean).powi(2)).sum();
            let half = t95(pairs.len() - 1) * (squares / (count - 1.0) / count).sqrt();
            (mean - half, mean + half)
        });
        let means = (mean_of(|(a, _)| *a), mean_of(|(_, b)| *b));
        Some(Self { means, pairs: pairs.len() as u64, mean, interval })
    }

    /// Whether the interval leaves out 0.
    pub fn is_clear(&self) -> bool {
        self.interval.is_some_and(|(low, high)| low > 0.0 || high < 0.0)
    }
}

/// Beyond the table by the expansion around the normal quantile, right to three digits there.
fn t95(freedom: usize) -> f64 {
    const Z: f64 = 1.959_964;
    let beyond = || {
        let n = freedom as f64;
        Z + (Z.powi(3) + Z) / (4.0 * n)
            + (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / (96.0 * n * n)
    };
    T95.get(freedom.wrapping_sub(1)).copied().unwrap_or_else(beyond)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_what_tables_say() {
        // Differences 1, 2, 3: mean 2, deviation 1, t(2) = 4.303.
        let found = Difference::of(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]).unwrap();
        assert_eq!((found.means, found.mean, found.pairs), ((1.0, 3.0), 2.0, 3));
        let (low, high) = found.interval.unwrap();
        let half = 4.303 / 3f64.sqrt();
        assert!((low - (2.0 - half)).abs() < 1e-9 && (high - (2.0 + half)).abs() < 1e-9);
        assert!(!found.is_clear());
        assert_eq!(Difference::of(&[(1.0, 2.0)]).unwrap().interval, None);
        assert_eq!(Difference::of(&[]), None);
        assert!(Difference::of(&[(0.0, 1.0), (0.0, 1.1)]).unwrap().is_clear());
    }

    #[test]
    fn the_expansion_goes_on_where_the_table_ends() {
        for (freedom, right) in
            [(30, 2.042), (40, 2.021), (60, 2.000), (120, 1.980), (10_000, 1.960)]
        {
            assert!((t95(freedom) - right).abs() < 1e-3, "{freedom}: {}", t95(freedom));
        }
    }
}

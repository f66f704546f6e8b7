//! Medians and quantiles.

/// The quantile of these values, nearest rank; NaN of none.
pub(super) fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted
        .get((last as f64 * q).round() as usize)
        .copied()
        .unwrap_or(f64::NAN)
}

/// The median.
pub(super) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Pairwise `a - b`.
pub(super) fn differences(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

/// The median with its quartiles, in `digits` decimals.
pub(super) fn spread(values: &[f64], digits: usize) -> String {
    let [low, mid, high] = [0.25, 0.5, 0.75].map(|q| quantile(values, q));
    format!("{mid:.digits$} ({low:.digits$} to {high:.digits$})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_and_pairs_keep_their_order() {
        let values = [3.0, 1.0, 2.0, 5.0, 4.0];
        assert_eq!(
            (
                median(&values),
                quantile(&values, 1.0),
                quantile(&values, 0.0)
            ),
            (3.0, 5.0, 1.0)
        );
        assert!(median(&[]).is_nan());
        assert_eq!(differences(&[3.0, 5.0], &[1.0, 1.0]), [2.0, 4.0]);
        assert_eq!(spread(&values, 1), "3.0 (2.0 to 4.0)");
    }
}

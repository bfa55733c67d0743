//! Whose fault it is that device memory ran out.

/// Whether the device's memory ran out before the candidate's own share did: what torch could not
/// have is more than what was free.
pub(crate) fn others_took_it(detail: &str) -> bool {
    let after = |mark: &str| -> Option<f64> {
        let mut words = detail[detail.find(mark)? + mark.len()..].split_whitespace();
        let number: f64 = words.next()?.parse().ok()?;
        let unit = match words.next()?.trim_end_matches('.') {
            "GiB" => 1024.0 * 1024.0,
            "MiB" => 1024.0,
            "KiB" => 1.0,
            _ => return None,
        };
        Some(number * unit)
    };
    match (after("Tried to allocate "), after("of which ")) {
        (Some(wanted), Some(free)) => wanted > free,
        _ => detail.contains("CUDA error: out of memory"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_others_is_told_from_a_candidates_own() {
        let said = |free: &str| {
            format!(
                "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total \
                 capacity of 139.81 GiB of which {free} is free. 24.00 GiB allowed; Of the allocated"
            )
        };
        assert!(others_took_it(&said("1.20 GiB")) && others_took_it(&said("12.00 MiB")));
        assert!(!others_took_it(&said("100.00 GiB")));
        assert!(others_took_it("RuntimeError: CUDA error: out of memory"));
        assert!(!others_took_it("MemoryError: Unable to allocate 8.00 GiB"));
    }
}

//! What is minimised, in the engine's words.

use events::config::{Aggregate, Variant};
use serde_json::{Value, json};

/// Writes what is not as in the paper into a request.
pub(super) fn vary(request: &mut Value, v: &Variant) {
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            request[key] = value;
        }
    };
    set("clip_high", v.clip_high.map(|x| json!(x.get())));
    set("ratio", v.ratio.map(|ratio| json!(ratio)));
    set("penalty", v.penalty.map(|penalty| json!(penalty)));
    set("entropy", v.entropy_weight.map(|x| json!(x.get())));
    set("importance_cap", v.importance_cap.map(|x| json!(x.get())));
    let sums = |aggregate| match (aggregate, v.sum_per) {
        (Aggregate::SampleSum, Some(per)) => json!({ "sample-sum": per.get() }),
        (other, _) => json!(other),
    };
    set("aggregate", v.aggregate.map(sums));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_the_paper_is_said_in_the_engines_words() {
        let mut request = json!({ "op": "grpo" });
        vary(&mut request, &Variant::default());
        assert_eq!(request, json!({ "op": "grpo" }));
        let text = r#"{"clip-high": 0.28, "ratio": "sequence", "aggregate": "sample-sum", "sum-per": 512,
            "penalty": "k2", "entropy-weight": 0.01, "importance-cap": 2.0}"#;
        vary(&mut request, &serde_json::from_str(text).unwrap());
        let wanted = json!({ "op": "grpo", "clip_high": 0.28, "ratio": "sequence",
            "aggregate": { "sample-sum": 512 }, "penalty": "k2", "entropy": 0.01, "importance_cap": 2.0 });
        assert_eq!(request, wanted);
    }
}

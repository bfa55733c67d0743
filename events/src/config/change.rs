//! One setting changed in the middle of a run.

use toml::{Table, Value};

use super::{BadConfig, RunConfig, lora, objective};

/// What has gone into the run before anything could be changed.
const FIXED: [&str; 6] =
    ["seed", "proposer.policy.init", "coder.policy.init", "sampler.table", "actors", lora::PLACE];
/// The last part of settings that need not be there and say nothing about a step.
const OPTIONAL: [&str; 3] = ["freeze-at-step", "keep-last", "keep-every"];

/// Whether a change may come while a step is open: what has been drawn for it does not depend on it.
pub fn any_time(key: &str) -> bool {
    key.rsplit('.').next().is_some_and(|last| OPTIONAL.contains(&last))
}

pub(super) fn with(
    config: &RunConfig,
    key: &str,
    value: Option<&str>,
) -> Result<RunConfig, BadConfig> {
    let below = |rest: &str| rest.is_empty() || rest.starts_with('.');
    if FIXED.iter().any(|fixed| key.strip_prefix(fixed).is_some_and(below)) {
        return Err(BadConfig(format!("{key}: is what the run began with: start another run")));
    }
    let unknown =
        || BadConfig(format!("{key}: there is no such setting: name it like judge.trials"));
    let mut whole: Table =
        toml::from_str(&config.to_text()?).map_err(|e| BadConfig(e.to_string()))?;
    let (path, last) = key.rsplit_once('.').map_or((None, key), |(path, last)| (Some(path), last));
    // Its table is not written while nothing stands in it.
    let variant = path == Some(objective::PLACE);
    let absent = any_time(key) || variant;
    let mut table = &mut whole;
    for part in path.into_iter().flat_map(|path| path.split('.')) {
        if variant && !table.contains_key(part) {
            table.insert(part.to_owned(), Value::Table(Table::new()));
        }
        table = table.get_mut(part).and_then(Value::as_table_mut).ok_or_else(unknown)?;
    }
    if !absent && !table.contains_key(last) {
        return Err(unknown());
    }
    match value {
        Some(text) => {
            let value = parsed(text, table.get(last));
            table.insert(last.to_owned(), value);
        }
        None if absent => {
            table.remove(last);
        }
        None => return Err(BadConfig(format!("{key}: it needs a value"))),
    }
    let text = toml::to_string(&whole).map_err(|e| BadConfig(e.to_string()))?;
    // The error's first lines show a line of a file that nobody wrote; the last says what is wrong.
    RunConfig::parse(&text).map_err(|BadConfig(error)| {
        let why = error.trim_end().lines().last().unwrap_or_default();
        BadConfig(format!("{key}={}: {why}", value.unwrap_or_default()))
    })
}

/// A value as TOML writes it; a bare word is a string, and a whole number where a fraction was is one.
fn parsed(text: &str, old: Option<&Value>) -> Value {
    let line = toml::from_str::<Table>(&format!("value = {text}"));
    // Text that goes on to other keys is a text.
    let alone = line.ok().filter(|table| table.len() == 1);
    match alone.and_then(|mut table| table.remove("value")) {
        Some(Value::Integer(whole)) if old.is_some_and(Value::is_float) => {
            Value::Float(whole as f64)
        }
        Some(value) => value,
        None => Value::String(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{EXAMPLE, Rules};

    #[test]
    fn one_setting_changes_and_the_rest_stays() {
        let config = RunConfig::parse(EXAMPLE).unwrap();
        let changed = config.with("judge.profile", Some("paper")).unwrap();
        assert_eq!(changed.judge.profile, Rules::Paper);
        let back = changed.with("judge.profile", Some("\"strict\"")).unwrap();
        assert_eq!(back, config.with("judge.profile", Some("strict")).unwrap());
        let frozen = config.with("proposer.policy.freeze-at-step", Some("40")).unwrap();
        assert_eq!(frozen.proposer.policy.freeze_at_step, Some(40));
        assert_eq!(frozen.with("proposer.policy.freeze-at-step", None).unwrap(), config);
        assert_eq!(config.with("coder.alpha", Some("1")).unwrap().coder.alpha.get(), 1.0);
    }

    #[test]
    fn the_objective_is_the_papers_where_nothing_is_said() {
        let config = RunConfig::parse(EXAMPLE).unwrap();
        assert!(!config.to_text().unwrap().contains("objective"));
        let key = "trainer.objective.aggregate";
        let changed = config.with(key, Some("token-mean")).unwrap();
        assert!(changed.to_text().unwrap().contains("[trainer.objective]"));
        let whole = changed.with("trainer.objective.importance-cap", Some("2")).unwrap();
        assert_eq!(RunConfig::parse(&whole.to_text().unwrap()).unwrap(), whole);
        assert_eq!(changed.with(key, None).unwrap(), config);
        let sums = config.with("trainer.objective.sum-per", Some("512")).unwrap();
        let sums = sums.with(key, Some("sample-sum")).unwrap().with(key, None).unwrap();
        assert_eq!(sums.with("trainer.objective.sum-per", None).unwrap(), config);
    }

    #[test]
    fn what_cannot_be_changed_is_named() {
        let config = RunConfig::parse(EXAMPLE).unwrap();
        let lines = config.with("coder.beta", Some("0.1\n[judge]\ntrials = 7")).unwrap_err();
        assert!(lines.to_string().starts_with("coder.beta="), "{lines}");
        let prompt = "Write {module}\nlike [this]\nx = 3";
        let changed = config.with("coder.policy.prompt", Some(prompt)).unwrap();
        assert_eq!(changed.coder.policy.prompt, prompt);
        for (key, value, says) in [
            ("seed", Some("2"), "began with"),
            ("judge.speed", Some("2"), "no such setting"),
            ("judge.trials.x", Some("2"), "no such setting"),
            ("freeze-at-step", Some("2"), "unknown field"),
            ("judge.trials", Some("0"), "judge.trials"),
            ("judge.trials", None, "needs a value"),
            ("judge.profile", Some("lax"), "judge.profile=lax: unknown variant"),
            ("coder.alpha", Some("7"), "coder.alpha=7: "),
            ("trainer.objective.aggregate", Some("sample-sum"), "set that first"),
            ("trainer.objective.clip-high", Some("0.0"), "must be above 0"),
            ("trainer.objective.speed", Some("1"), "unknown field"),
            ("coder.policy.temperature", Some("0.0"), "must be above 0"),
        ] {
            let error = config.with(key, value).unwrap_err().to_string();
            assert!(error.contains(says), "{key}: {error}");
        }
    }
}

//! One setting changed by name, as `--set key=value` asks.

use super::{BadConfig, RunConfig};

impl RunConfig {
    /// This config with the setting `key` (dotted, as in the file) at `value` (as in the file; text may
    /// go without quotes). All that a file is held to holds here.
    pub fn with(&self, key: &str, value: &str) -> Result<Self, BadConfig> {
        let mut file: toml::Table =
            toml::from_str(&self.to_text()?).map_err(|e| BadConfig(e.to_string()))?;
        let missing = || BadConfig(format!("{key}: there is no such setting"));
        let mut place = &mut file;
        let (tables, last) = key.rsplit_once('.').unwrap_or(("", key));
        for name in tables.split('.').filter(|name| !name.is_empty()) {
            let inner = place.get_mut(name).and_then(toml::Value::as_table_mut);
            place = inner.ok_or_else(missing)?;
        }
        let old = place.get_mut(last).ok_or_else(missing)?;
        *old = literal(value, old);
        let text = toml::to_string(&file).map_err(|e| BadConfig(e.to_string()))?;
        // The error's first lines show a line of a file that nobody wrote; the last says what is wrong.
        Self::parse(&text).map_err(|BadConfig(error)| {
            let why = error.trim_end().lines().last().unwrap_or_default();
            BadConfig(format!("{key}={value}: {why}"))
        })
    }
}

/// `text` as a value of the file. A whole number where a fraction was is one.
fn literal(text: &str, old: &toml::Value) -> toml::Value {
    let parsed = toml::from_str::<toml::Table>(&format!("value = {text}"));
    match parsed.ok().and_then(|mut table| table.remove("value")) {
        Some(toml::Value::Integer(whole)) if old.is_float() => toml::Value::Float(whole as f64),
        Some(value) => value,
        None => toml::Value::String(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{EXAMPLE, Rules, RunConfig};

    #[test]
    fn a_setting_is_changed_by_name_and_held_to_its_type() {
        let config = RunConfig::parse(EXAMPLE).unwrap();
        let other = if config.judge.profile == Rules::Paper { "strict" } else { "paper" };
        for value in [other.to_owned(), format!("\"{other}\"")] {
            let changed = config.with("judge.profile", &value).unwrap();
            assert_ne!(changed.judge.profile, config.judge.profile);
            let back = changed.judge.profile;
            assert_eq!(RunConfig { judge: config.judge.clone(), ..changed }, config, "{back:?}");
        }
        assert_eq!(config.with("coder.alpha", "1").unwrap().coder.alpha.get(), 1.0);
        let refused = |key, value| config.with(key, value).unwrap_err().to_string();
        assert!(refused("judge.profil", "paper").contains("judge.profil: there is no such"));
        assert!(refused("coder.alpha.x", "1").contains("there is no such"));
        assert!(refused("judge.profile", "lax").contains("judge.profile=lax: unknown variant"));
        assert!(refused("coder.alpha", "7").contains("coder.alpha=7: "));
        assert!(refused("coder.policy.group-size", "1").contains("at least 2"));
    }
}
